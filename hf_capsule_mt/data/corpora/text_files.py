"""Sentence pairs out of files, one after the other, so that memory does not depend on how long a file is.

A line ends in a line feed and nowhere else (a carriage return before it goes), so that line *i* of one file stays with
line *i* of the other one, whatever characters are inside. What a line must not hold is an error that names file and
line, or is repaired and counted.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from hf_capsule_mt.data.corpora.cache import file_digest
from hf_capsule_mt.data.corpora.columns import PairColumns, quoted

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What no sentence may hold and what a repair puts in its place. Surrogates stand for bytes that are no UTF-8; the line
# ends are all that `str.splitlines` knows.
_REPAIRS = {
    "nul": (re.compile("\0"), ""),
    "invalid_utf8": (re.compile("[\ud800-\udfff]"), "\ufffd"),
    "line_end": (re.compile("[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]"), " "),
}
_UNSOUND = re.compile("|".join(flaws.pattern for flaws, _ in _REPAIRS.values()))


class BrokenRecord(ValueError):
    """A record that holds no pair of texts; says why."""


class PairSource(ABC):
    """Where pairs come from. `records` reads, `parse` makes two texts of a record, in another process if need be."""

    def check(self) -> None:
        """Raises what can be found out before the first pair is read: nothing, for most."""
        return None

    @abstractmethod
    def records(self, repaired: Counter[str]) -> Iterator[Any]:
        """The records as read; what was repaired on the way is counted."""

    @abstractmethod
    def parse(self, record: Any) -> tuple[str, str]:
        """Source and target; a byte that is no UTF-8 is a surrogate in them. Raises BrokenRecord."""

    @abstractmethod
    def place(self, number: int, side: int, record: Any) -> str:
        """What an error calls side 0 or 1 of this record, which is the one of this number, counted from 0."""

    def skipped(self) -> dict[str, int]:
        """Rows that `records` leaves out because they hold no pair, by what they are."""
        return {}

    @abstractmethod
    def stamp(self) -> list[Any]:
        """Of the content, as JSON: changes whenever the pairs may have changed."""


@dataclass(frozen=True)
class TextFiles(PairSource):
    """Two files; line *i* of one translates line *i* of the other."""

    paths: tuple[Path, Path]

    def check(self) -> None:
        counts = [_count_lines(path) for path in self.paths]
        if counts[0] != counts[1]:
            raise ValueError(
                f"{self.paths[0]} has {counts[0]} lines and {self.paths[1]} has {counts[1]} lines; must be as many, "
                "for line by line they belong together: find what is missing"
            )

    def records(self, repaired: Counter[str]) -> Iterator[tuple[bytes, bytes]]:
        for source, target in zip_longest(*(lines_of(path, repaired) for path in self.paths)):
            if source is None or target is None:
                self.check()
            yield source, target

    def parse(self, record: tuple[bytes, bytes]) -> tuple[str, str]:
        return decode(record[0]), decode(record[1])

    def place(self, number: int, side: int, record: Any) -> str:
        return f"{self.paths[side]}, line {number + 1}"

    def stamp(self) -> list[Any]:
        return ["text", *map(file_digest, self.paths)]


@dataclass(frozen=True)
class JsonLines(PairSource):
    """One object a line: {"translation": {"en": …, "de": …}}, or the inner one alone."""

    path: Path
    wanted: PairColumns

    def records(self, repaired: Counter[str]) -> Iterator[bytes]:
        return lines_of(self.path, repaired)

    def place(self, number: int, side: int, record: Any) -> str:
        return f"{self.path}, line {number + 1}"

    def parse(self, record: bytes) -> tuple[str, str]:
        try:
            row = json.loads(decode(record))
        except (ValueError, RecursionError) as error:
            raise BrokenRecord(f"no JSON ({error}); must be JSON Lines, one object a line") from None
        return pair_of(row, self.wanted)

    def stamp(self) -> list[Any]:
        return ["json", self.wanted.columns, file_digest(self.path)]


def pair_of(row: Any, wanted: PairColumns) -> tuple[str, str]:
    """The two texts of {"translation": {"en": …, "de": …}}, of {"en": …, "de": …}, or of the columns by name."""
    texts = row.get("translation", row) if isinstance(row, dict) and wanted.columns is None else row
    keys, kind = wanted.columns or wanted.languages, "languages" if wanted.columns is None else "columns"
    if not isinstance(texts, dict):
        raise BrokenRecord(f"a {type(texts).__name__}; must be an object with the keys {' and '.join(keys)}")
    for key in keys:
        if not isinstance(texts.get(key), str):
            has = f"it has {quoted(texts)}" if key not in texts else "it is no text"
            raise BrokenRecord(f"no text {key!r} ({has}); check the names of the two {kind}")
    return texts[keys[0]], texts[keys[1]]


def flaw(text: str) -> str | None:
    """What a sentence must not hold and does, in words; None for a sound one."""
    found = _UNSOUND.search(text)
    if found is None:
        return None
    if found[0] == "\0":
        return "holds a NUL character"
    if "\ud800" <= found[0] <= "\udfff":
        return f"is no valid UTF-8, at character {found.start() + 1}"
    return f"holds U+{ord(found[0]):04X}, which many tools take for the end of a line"


def repair_text(text: str, repaired: Counter[str]) -> str:
    """The text without its flaws; every kind of flaw counts a sentence once."""
    for name, (flaws, instead) in _REPAIRS.items():
        text, count = flaws.subn(instead, text)
        repaired[name] += bool(count)
    return text


def decode(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        # Much faster than the lines of a GzipFile itself.
        return io.BufferedReader(gzip.open(path, "rb"), 1 << 20)
    return open(path, "rb", buffering=1 << 20)


def lines_of(path: Path, repaired: Counter[str]) -> Iterator[bytes]:
    """Lines without their ends; a byte order mark at the start of the file goes and is counted."""
    number = 0
    with _open(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(_BYTE_ORDER_MARK):
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                    repaired["byte_order_mark"] += 1
                yield line.removesuffix(b"\n").removesuffix(b"\r")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path}, after line {number}: the gzip file is damaged ({error}); get it anew"
            ) from error


def _count_lines(path: Path) -> int:
    return sum(1 for _ in lines_of(path, Counter()))
