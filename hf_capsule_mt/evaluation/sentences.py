"""Reads a file of sentences, one a line. A name in `.gz` is a gzip file."""

import gzip
import zlib
from codecs import BOM_UTF8
from pathlib import Path

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")


def read_sentences(path: str | Path) -> list[str]:
    """The lines of a file. A line ends with a line feed, or with CR and LF. A byte order mark is left out.

    A file that is empty, or whose name is that of a table, is a `ValueError`.
    """
    path = Path(path)
    if path.name.removesuffix(".gz").endswith(TABLES):
        raise ValueError(
            f"{path} is a table, and must be a file with one sentence a line: write each side to a file, as in "
            "`cut -f 1 pairs.tsv > pairs.en`"
        )
    sentences: list[str] = []
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = (line.removeprefix(BOM_UTF8) if number == 1 else line).decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}, line {number}: must be UTF-8 ({error}); convert it first") from error
                sentences.append(text.removesuffix("\n").removesuffix("\r"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}): compress it again") from error
    if not sentences:
        raise ValueError(f"{path} is empty: give a file with one sentence a line")
    return sentences
