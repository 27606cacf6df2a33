"""Finished corpora on disk: what they are known by, and whether they are still as they were written.

The folder of a corpus is named after a digest of everything that it was made from: the content of the files, not
their size and time, the options, and the code of this folder. It holds `pairs.arrow`, and `report.json` with the
digest of that file. A folder that is not as it was written is made again. SHA-256 reads 1.2 GB a second here with one
thread, so that a corpus of ten million pairs and 1.5 GB takes one to two seconds for each of the two digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from hf_capsule_mt.data.corpora.cleaning import CleaningReport

PAIRS, REPORT = "pairs.arrow", "report.json"
_ROWS = 10_000


def file_digest(path: Path) -> str:
    """Of the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rows_digest(dataset: Any) -> str:
    """Of the content of all columns of a `datasets.Dataset`, read some rows at a time."""
    found = hashlib.sha256(repr(dataset.features).encode())
    for rows in dataset.with_format("arrow").iter(batch_size=_ROWS):
        for batch in rows.combine_chunks().to_batches():
            found.update(batch.serialize())
    return found.hexdigest()


def corpus_folder(cache: Path, made_from: list[Any]) -> Path:
    """Where the corpus that is made from this is kept."""
    code = [file_digest(path) for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    key = hashlib.sha256(json.dumps([made_from, code]).encode()).hexdigest()[:24]
    return cache / f"corpus-{key}"


def is_corpus_cache(folder: Path) -> bool:
    return folder.name.startswith("corpus-") and (folder / REPORT).is_file()


def seal_corpus(folder: Path, report: CleaningReport) -> None:
    """Writes the report and the digest of the finished pairs."""
    content = {"report": report.as_dict(), "sha256": file_digest(folder / PAIRS)}
    (folder / REPORT).write_text(json.dumps(content), encoding="utf-8")


def open_corpus(folder: Path) -> tuple[Any, CleaningReport] | None:
    """The pairs and the report; None where there are none. A damaged folder goes, with a warning."""
    import datasets

    if not folder.exists():
        return None
    try:
        content = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        report = CleaningReport(**content["report"])
        if file_digest(folder / PAIRS) != content["sha256"]:
            raise ValueError(f"{PAIRS} is not as it was written")
    except (OSError, ValueError, TypeError, KeyError) as error:
        warnings.warn(f"the corpus in {folder} is damaged ({error}) and is made again", stacklevel=3)
        _remove(folder)
        return None
    return datasets.Dataset.from_file(str(folder / PAIRS)), report


def _remove(folder: Path) -> None:
    """Takes the folder away at once; another process may have done so."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True) as temporary:
        try:
            os.rename(folder, Path(temporary) / "damaged")
        except FileNotFoundError:
            return
        shutil.rmtree(Path(temporary) / "damaged", ignore_errors=True)
