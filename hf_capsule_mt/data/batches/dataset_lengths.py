"""How many tokens the pairs of a tokenised data set have."""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_COLUMNS = ("input_ids", "labels")
_BLOCK_PAIRS = 20_000


class ArrowLengths:
    """`[pairs, 2]`, tokens of `input_ids` and of `labels`, block by block and as often as wanted.

    The rows of the `datasets.Dataset` are not built. `folders` are for what grows with the data set: where its own
    files are, and the cache of `datasets`; None where it is in memory itself.
    """

    def __init__(self, dataset: Any) -> None:
        import datasets

        _check_columns(dataset.column_names, "the data set")
        self.columns = dataset.with_format("arrow", columns=list(_COLUMNS))
        files = dataset.cache_files
        cache = Path(datasets.config.HF_DATASETS_CACHE).expanduser()
        self.folders = [Path(files[0]["filename"]).parent, cache] if files else None

    def __iter__(self) -> Iterator[np.ndarray]:
        for part in self.columns.iter(batch_size=_BLOCK_PAIRS):
            yield np.stack([_lengths(part[name], name) for name in _COLUMNS], axis=1)


def _lengths(column: Any, name: str) -> np.ndarray:
    if not hasattr(column.chunk(0), "value_lengths") or column.null_count:
        found = f"{column.null_count} nulls" if column.null_count else f"values of type {column.type}"
        raise ValueError(f"column {name!r} has {found}: must be lists of tokens; tokenize it first, preprocess_pairs")
    return np.concatenate([chunk.value_lengths().to_numpy() for chunk in column.chunks])


def pair_lengths(dataset: Any) -> np.ndarray | ArrowLengths:
    """What a [`TokenBatchSampler`] takes: source and target tokens of every pair.

    Of a `datasets.Dataset` nothing is read now and nothing kept; of any other one all rows are, and `[pairs, 2]` kept.
    """
    import datasets

    if isinstance(dataset, datasets.Dataset):
        return ArrowLengths(dataset)
    lengths = np.empty((len(dataset), 2), dtype=np.int32)
    for index in range(len(dataset)):
        row = dataset[index]
        _check_columns(row, f"pair {index} of the data set")
        lengths[index] = len(row["input_ids"]), len(row["labels"])
    return lengths


def most_tokens(lengths: np.ndarray | ArrowLengths) -> int:
    """Of both sides of one pair."""
    blocks = lengths if isinstance(lengths, ArrowLengths) else [lengths]
    return max((int(block.sum(axis=1).max()) for block in blocks if len(block)), default=0)


def _check_columns(found: Container[str], where: str) -> None:
    missing = [name for name in _COLUMNS if name not in found]
    if missing:
        raise ValueError(f"{where} has no column {missing[0]!r}: tokenize it first, preprocess_pairs")
