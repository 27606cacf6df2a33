"""Reads files of sentences, one a line. A name in `.gz` is a gzip file."""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")


def read_sentences(path: str | Path) -> list[str]:
    """The lines of a file, as `lines_of_file` yields them.

    A file that is empty, or whose name is that of a table, is a `ValueError`.
    """
    path = Path(path)
    if path.name.removesuffix(".gz").endswith(TABLES):
        raise ValueError(
            f"{path} is a table, and must be a file with one sentence a line: write each side to a file, as in "
            "`cut -f 1 pairs.tsv > pairs.en`"
        )
    sentences = list(lines_of_file(path))
    if not sentences:
        raise ValueError(f"{path} is empty: give a file with one sentence a line")
    return sentences


def lines_of_file(path: Path) -> Iterator[str]:
    """The lines of a file. Without UTF-8, or if a gzip file is cut off, it is a `ValueError`."""
    try:
        with open_lines(path) as file:
            yield from decoded_lines(file, path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}): compress it again") from error


def open_lines(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb"))


def decoded_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """Lines as text. A line ends with a line feed, or with CR and LF. A byte order mark is left out."""
    for number, line in enumerate(lines, 1):
        try:
            text = (line.removeprefix(BOM_UTF8) if number == 1 else line).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: must be UTF-8 ({error}); convert it first") from error
        yield text.removesuffix("\n").removesuffix("\r")
