"""How many tokens the pairs of a tokenised data set have."""

import os
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_COLUMNS = ("input_ids", "labels")
_BLOCK = 20_000  # pairs


class ArrowLengths:
    """`[pairs, 2]`, tokens of `input_ids` and of `labels`, block by block and as often as wanted.

    The rows of the `datasets.Dataset` are not built. `folder` is one to write to for what is as large as the data set:
    where its own files are, or, if nobody may write there, where temporary files go; None where it is in memory.
    """

    def __init__(self, dataset: Any) -> None:
        _check_columns(dataset.column_names, "the data set")
        self.columns = dataset.with_format("arrow", columns=list(_COLUMNS))
        files = dataset.cache_files
        folder = Path(files[0]["filename"]).parent if files else None
        self.folder = folder if folder is None or os.access(folder, os.W_OK) else Path(tempfile.gettempdir())

    def __iter__(self) -> Iterator[np.ndarray]:
        for part in self.columns.iter(batch_size=_BLOCK):
            sides = [[chunk.value_lengths().to_numpy() for chunk in part[name].chunks] for name in _COLUMNS]
            yield np.stack([np.concatenate(side) for side in sides], axis=1)


def pair_lengths(dataset: Any) -> np.ndarray | ArrowLengths:
    """Of a `datasets.Dataset` without reading it now; of any other one `[pairs, 2]`, from one pass over its rows."""
    import datasets

    if isinstance(dataset, datasets.Dataset):
        return ArrowLengths(dataset)
    lengths = np.empty((len(dataset), 2), dtype=np.int32)
    for index in range(len(dataset)):
        row = dataset[index]
        _check_columns(row, f"pair {index} of the data set")
        lengths[index] = len(row["input_ids"]), len(row["labels"])
    return lengths


def longest_pair(lengths: np.ndarray | ArrowLengths) -> int:
    """Tokens of both sides."""
    blocks = lengths if isinstance(lengths, ArrowLengths) else [lengths]
    return max(int(block.sum(axis=1).max()) for block in blocks)


def _check_columns(found: Container[str], where: str) -> None:
    missing = [name for name in _COLUMNS if name not in found]
    if missing:
        raise ValueError(f"{where} has no column {missing[0]!r}: tokenize it first, preprocess_pairs")
