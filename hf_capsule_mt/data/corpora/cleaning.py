"""Rules that say which sentence pairs of a corpus are worth training on, and the report of what each of them dropped.

No rule knows a language: lengths are characters, or words between spaces; nothing depends on an alphabet.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # Unicode's category Cc, without the tab
_CONTROL_CHOICES = ("keep", "remove", "drop")


@dataclass(frozen=True)
class CleaningRules:
    """What a pair must be like to be kept. The default drops nothing but pairs with a blank side.

    First both sides are changed: `control_characters="remove"`, then `normalize_whitespace`. Then the rules are asked
    in the order below, and the first that a pair breaks is the one it counts for.

    Args:
        normalize_whitespace: runs of white space become one space, none is left at either end.
        drop_empty: a side that is empty or blank. Training refuses such pairs.
        control_characters: "keep", "remove" from the text, or "drop" the pair. Tabs are none.
        drop_replaced: U+FFFD on either side, which stands where an encoding was broken.
        min_words, max_words: of either side, split at white space. Of no use for a language without spaces.
        max_characters: of either side.
        max_ratio: characters of the longer side to those of the shorter one. 3 suits two alphabets; Chinese needs
            about a third of the characters of English, so 9 asks the same of that pair.
        drop_identical: both sides are the same text.
        drop_duplicates: the same pair came before. It compares digests of 64 bits, which need up to 16 bytes of memory
            a pair while the corpus is read. Among ten million pairs the chance that two different pairs have the same
            digest is 3 in a million.
    """

    normalize_whitespace: bool = False
    drop_empty: bool = True
    control_characters: str = "keep"
    drop_replaced: bool = False
    min_words: int | None = None
    max_words: int | None = None
    max_characters: int | None = None
    max_ratio: float | None = None
    drop_identical: bool = False
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.control_characters not in _CONTROL_CHOICES:
            problems.append(
                f"control_characters={self.control_characters!r} must be one of {', '.join(_CONTROL_CHOICES)}"
            )
        for name in (item.name for item in fields(self) if item.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                problems.append(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("min_words", "max_words", "max_characters"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                problems.append(f"{name}={value!r} must be an integer of at least 1, or None for no limit")
        if not problems and self.min_words and self.max_words and self.min_words > self.max_words:
            problems.append(f"min_words={self.min_words} must not be above max_words={self.max_words}; lower it")
        ratio = self.max_ratio
        if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio >= 1):
            problems.append(f"max_ratio={ratio!r} must be a number of at least 1, or None for no limit")
        if problems:
            raise ValueError("CleaningRules: " + "; ".join(problems))

    @property
    def names(self) -> tuple[str, ...]:
        """The rules that can drop a pair, in the order in which they are asked."""
        switched = {
            "empty": self.drop_empty,
            "control_characters": self.control_characters == "drop",
            "replaced": self.drop_replaced,
            "min_words": self.min_words,
            "max_words": self.max_words,
            "max_characters": self.max_characters,
            "max_ratio": self.max_ratio,
            "identical": self.drop_identical,
            "duplicates": self.drop_duplicates,
        }
        return tuple(name for name, value in switched.items() if value)

    def mend(self, text: str) -> str:
        """One side as it is kept."""
        if self.control_characters == "remove":
            text = _CONTROL.sub("", text)
        return " ".join(text.split()) if self.normalize_whitespace else text

    def broken(self, source: str, target: str) -> str | None:
        """The first rule that a mended pair breaks, or None. Duplicates are not seen here: `SeenPairs`."""
        if self.drop_empty and not (source.strip() and target.strip()):
            return "empty"
        if self.control_characters == "drop" and (_CONTROL.search(source) or _CONTROL.search(target)):
            return "control_characters"
        if self.drop_replaced and ("\ufffd" in source or "\ufffd" in target):
            return "replaced"
        if self.min_words or self.max_words:
            fewer, more = sorted((len(source.split()), len(target.split())))
            if self.min_words and fewer < self.min_words:
                return "min_words"
            if self.max_words and more > self.max_words:
                return "max_words"
        shorter, longer = sorted((len(source), len(target)))
        if self.max_characters and longer > self.max_characters:
            return "max_characters"
        if self.max_ratio and longer > self.max_ratio * shorter:
            return "max_ratio"
        return "identical" if self.drop_identical and source == target else None


@dataclass
class CleaningReport:
    """Pairs read and kept, pairs dropped by each rule, sentences repaired by each repair.

    `read` is always `kept` and all of `dropped` together. A header of a table counts as `dropped`, too.
    """

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)

    def start(self, rules: CleaningRules) -> None:
        """Forgets everything and lists the rules that are on."""
        self.read = self.kept = 0
        self.dropped = dict.fromkeys(rules.names, 0)
        self.repaired = {}

    def add(self, kept: int, dropped: Counter[str], repaired: Counter[str]) -> None:
        self.read += kept + dropped.total()
        self.kept += kept
        for counts, more in ((self.dropped, dropped), (self.repaired, repaired)):
            for name, count in (+more).items():
                counts[name] = counts.get(name, 0) + count

    def as_dict(self) -> dict[str, Any]:
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "repaired": dict(self.repaired),
        }

    def __str__(self) -> str:
        lines = [("pairs read", self.read), ("pairs kept", self.kept)]
        lines += [(f"dropped, {name}", count) for name, count in self.dropped.items()]
        lines += [(f"repaired, {name}", count) for name, count in self.repaired.items()]
        width = max(len(label) for label, _ in lines)
        return "\n".join(f"{label:<{width}} {count:>12,}" for label, count in lines)


def digest(source: str, target: str) -> int:
    """64 bits that stand for the pair, the same in every process."""
    # Neither side can hold a line end.
    return int.from_bytes(hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), "big")


class SeenPairs:
    """The digests of all pairs so far, as sorted runs of numbers; two runs of like size are merged."""

    def __init__(self) -> None:
        self.runs: list[np.ndarray] = []

    def new(self, digests: list[int]) -> np.ndarray:
        """Which of the digests come for the first time, as booleans; from now on all of them have come."""
        values, first = np.unique(np.asarray(digests, dtype=np.uint64), return_index=True)
        is_new = np.ones(len(values), dtype=bool)
        for run in self.runs:
            places = np.searchsorted(run, values)
            is_new &= run[np.minimum(places, len(run) - 1)] != values
        if is_new.any():
            self.runs.append(values[is_new])
        while len(self.runs) > 1 and len(self.runs[-2]) <= 2 * len(self.runs[-1]):
            merged = np.concatenate([self.runs.pop(), self.runs.pop()])
            merged.sort(kind="stable")
            self.runs.append(merged)
        result = np.zeros(len(digests), dtype=bool)
        result[first[is_new]] = True
        return result
