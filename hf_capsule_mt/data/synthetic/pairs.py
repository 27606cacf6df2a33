"""A synthetic language pair: a seeded synchronous grammar from an English-like to a German-like language.

Each sentence is drawn as a tree and written out in both languages. So both sides mean the same, and the alignment of
all words is known::

    >>> pair = SyntheticPair(seed=0, max_words=14).pair(322)
    >>> pair.source
    'The sister invited the farmer who stole a key last week.'
    >>> pair.target
    'Die Schwester lud den Bauern, der letzte Woche einen Schlüssel stahl, ein.'
    >>> pair.constituents[1]
    Constituent(role='verb', source=(2,), target=(2, 11))

A word-for-word system fails on these phenomena:

- word order: verb-second main clauses with inversion, verb-final subordinate clauses, verb brackets, separable
  prefixes, nested clauses;
- forms: agreement in gender, case and number, datives and prepositions that a verb governs, *kein*;
- words whose translation depends on another word (*spend*: ausgeben or verbringen; *key*: Schlüssel or Taste;
  *when*: als, wenn or wann; *it*: er, sie or es).

Each sentence has one translation, so a perfect model reaches BLEU 100. All words and sentences were written for this
project.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_capsule_mt.data.synthetic.english import english
from hf_capsule_mt.data.synthetic.german import german
from hf_capsule_mt.data.synthetic.grammar import Grammar
from hf_capsule_mt.data.synthetic.tree import NO_TAG, Token

if TYPE_CHECKING:
    import datasets

LONGEST = 40
SPLITS = ("train", "valid", "test")
# Budgets of words for the grammar, as (share of the sentences, shortest, longest).
_BUDGETS = ((0.27, 3, 7), (0.43, 7, 12), (0.22, 12, 21), (0.08, 21, 38))
# Digests modulo 100 of the validation and test sentences; all other sentences are for training.
_HELD_OUT = {"valid": range(0, 5), "test": range(5, 10)}
_ATTEMPTS = 20_000


@dataclass(frozen=True, slots=True)
class Constituent:
    """A part of the sentence, with the positions of its words in ``text.split()``. They may have gaps."""

    role: str  # subject, verb, object, time, place, conjunction, relative pronoun, ...
    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence, its only translation, and its constituents. Each word of a side is in exactly one constituent.

    If a constituent is deleted from the target, its ``source`` positions are the words without a translation.
    Punctuation belongs to the word before it.
    """

    source: str
    target: str
    constituents: tuple[Constituent, ...]


class SyntheticPair:
    """An endless, deterministic corpus: ``pair(i)`` depends only on ``(seed, split, i)`` and the limits.

    A digest of the source sentence decides its split (90, 5 and 5 %). So no source sentence is in two splits, for any
    seeds. Both sides have at least ``min_words`` and at most ``max_words`` words.
    """

    def __init__(self, seed: int = 0, split: str = "train", max_words: int = LONGEST, min_words: int = 1) -> None:
        problems = []
        if isinstance(seed, bool) or not isinstance(seed, int):
            problems.append(f"seed={seed!r} must be an integer; give e.g. seed=0")
        if split not in SPLITS:
            problems.append(f"split={split!r} must be one of {', '.join(SPLITS)}")
        if not isinstance(max_words, int) or not isinstance(min_words, int):
            problems.append(f"max_words={max_words!r} and min_words={min_words!r} must be integers")
        elif not 6 <= max_words <= LONGEST:
            problems.append(f"max_words={max_words!r} must lie between 6 and {LONGEST}; give e.g. max_words={LONGEST}")
        elif not 1 <= min_words <= max_words - 4:
            problems.append(
                f"min_words={min_words!r} must lie between 1 and max_words - 4 = {max_words - 4}; "
                "lower it or raise max_words"
            )
        if problems:
            raise ValueError("SyntheticPair: " + "; ".join(problems))
        self.seed, self.split, self.max_words, self.min_words = seed, split, max_words, min_words

    def __iter__(self) -> Iterator[SentencePair]:
        index = 0
        while True:
            yield self.pair(index)
            index += 1

    def pair(self, index: int) -> SentencePair:
        """The pair at this index, counted from 0. Earlier pairs are not drawn."""
        if index < 0:
            raise ValueError(f"pair: index={index} must be 0 or more; the corpus is endless and has no last pair")
        # A string seed is hashed with SHA-512: unlike hash(), this is the same on every platform and in every process.
        rng = random.Random(f"synthetic-{self.seed}-{self.split}-{index}")
        grammar = Grammar(rng)
        for _ in range(_ATTEMPTS):
            tree = grammar.draw(self._budget(rng))
            mark = "?" if tree.clauses[0].question else "."
            source, source_tags = _spell(english(tree), mark)
            if not self.min_words <= len(source_tags) <= self.max_words or split_of(source) != self.split:
                continue
            target, target_tags = _spell(german(tree), mark)
            if self.min_words <= len(target_tags) <= self.max_words:
                return SentencePair(source, target, _constituents(tree.roles, source_tags, target_tags))
        raise RuntimeError(
            f"no sentence of {self.min_words} to {self.max_words} words in {_ATTEMPTS} attempts; widen the limits"
        )

    def _budget(self, rng: random.Random) -> int:
        if self.min_words > 6:
            # With the default budgets too many sentences would be rejected.
            return self.min_words + int(rng.random() * (self.max_words - self.min_words + 1))
        chance = rng.random()
        low, high = _BUDGETS[-1][1:]
        for share, shortest, longest in _BUDGETS:
            if chance < share:
                low, high = shortest, longest
                break
            chance -= share
        return min(low + int(rng.random() * (high - low + 1)), self.max_words)


def split_of(source: str) -> str:
    """The split that a source sentence belongs to: ``train``, ``valid`` or ``test``."""
    number = int.from_bytes(hashlib.sha256(source.encode()).digest()[:4], "big") % 100
    return next((split for split, numbers in _HELD_OUT.items() if number in numbers), "train")


def synthetic_lines(size: int, seed: int = 0, split: str = "train", **limits: int) -> tuple[list[str], list[str]]:
    """The first ``size`` source sentences and their translations; ``limits`` are ``min_words`` and ``max_words``."""
    if size < 0:
        raise ValueError(f"size={size} must be 0 or more")
    corpus = SyntheticPair(seed, split, **limits)
    pairs = [corpus.pair(index) for index in range(size)]
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def synthetic_dataset(size: int, seed: int = 0, split: str = "train", **limits: int) -> datasets.Dataset:
    """The first ``size`` pairs in the usual column: ``{"translation": {"en": ..., "de": ...}}``."""
    import datasets

    sources, targets = synthetic_lines(size, seed, split, **limits)
    rows = [{"en": source, "de": target} for source, target in zip(sources, targets, strict=True)]
    features = datasets.Features({"translation": datasets.Translation(languages=("en", "de"))})
    return datasets.Dataset.from_dict({"translation": rows}, features=features)


def _spell(tokens: list[Token], mark: str) -> tuple[str, list[int]]:
    """The text of tagged tokens, and the tag of each word. Adjacent commas merge; commas at the ends are dropped."""
    words: list[str] = []
    tags: list[int] = []
    pending = False
    for word, tag in tokens:
        if tag == NO_TAG:
            pending = True
            continue
        if pending and words:
            words[-1] += ","
        pending = False
        words.append(word)
        tags.append(tag)
    words[0] = words[0][0].upper() + words[0][1:]
    return " ".join(words) + mark, tags


def _constituents(roles: list[str], source_tags: list[int], target_tags: list[int]) -> tuple[Constituent, ...]:
    source: dict[int, list[int]] = {}
    target: dict[int, list[int]] = {}
    for tags, positions in ((source_tags, source), (target_tags, target)):
        for position, tag in enumerate(tags):
            positions.setdefault(tag, []).append(position)
    return tuple(
        Constituent(roles[tag], tuple(positions), tuple(target.get(tag, ()))) for tag, positions in source.items()
    )
