"""Pairs of a corpus sorted by length, in memory that does not grow with the corpus.

Legend: `N` pairs; a class is all pairs with the same two lengths, and there are `C` of them, at most as many as pairs
and at most (longest source) times (longest target). Sorting is by counting: one pass over the lengths counts the
classes, a second writes each index to its place. The `N` indices are on disk, 4 bytes each.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hf_capsule_mt.data.batches.disk_arrays import array_on_disk

_HALF = 1 << 31
_ROUNDS = 12


class LengthOrder:
    """All pairs by the longer side, within one length by what the sides differ, equal ones by index.

    The second is sorted up and down in turn, so that it does not jump from one length to the next. On real corpora
    this pads less than sorting by one side, by the sum of both, or in buckets.

    Args:
        blocks: `[pairs, 2]` each, source and target tokens; read twice.
        folders: for the file of the indices, see [`array_on_disk`]; None for memory.
    """

    def __init__(self, blocks: Iterable[np.ndarray], folders: Sequence[str | Path] | None = None) -> None:
        keys, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        for block in blocks:
            found, times = np.unique(_keys(block), return_counts=True)
            keys, places = np.unique(np.concatenate([keys, found]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, times])).astype(np.int64)
        self.lengths = _lengths(keys)  # [C, 2]
        self.counts = counts  # [C]
        self.firsts = np.cumsum(counts) - counts  # where each class starts in the order
        count = int(counts.sum())
        dtype = np.uint32 if count < 1 << 32 else np.int64
        self.indices = np.empty(count, dtype) if folders is None else array_on_disk(count, dtype, *folders)
        self._fill(blocks, keys)

    def __len__(self) -> int:
        return len(self.indices)

    def _fill(self, blocks: Iterable[np.ndarray], keys: np.ndarray) -> None:
        free = self.firsts.copy()  # the next place of every class
        start = 0
        for block in blocks:
            classes = np.searchsorted(keys, _keys(block))
            by_class = np.argsort(classes, kind="stable")
            classes = classes[by_class]
            counts = np.bincount(classes, minlength=len(keys))
            rank = np.arange(len(block)) - (np.cumsum(counts) - counts)[classes]
            self.indices[free[classes] + rank] = start + by_class
            free += counts
            start += len(block)

    def classes(self, places: np.ndarray) -> np.ndarray:
        """The class, 0 to `C - 1`, at each of these places of the order, both `[n]`."""
        return np.searchsorted(self.firsts, places, side="right") - 1

    def pairs(self, places: np.ndarray, keys: np.ndarray | None = None) -> np.ndarray:
        """The indices `[n]` at places `[n]`; equal lengths in an order that the `keys` draw, None for their own."""
        if keys is not None:
            classes = self.classes(places)
            firsts = self.firsts[classes]
            places = firsts + shuffled(places - firsts, self.counts[classes], classes, keys)
        return self.indices[places]


def shuffle_keys(*seeds: int) -> np.ndarray:
    """`[rounds]`, what [`shuffled`] draws from: nothing that a generator of the same seeds draws."""
    return np.random.SeedSequence(seeds, spawn_key=(1,)).generate_state(_ROUNDS, np.uint64)


def shuffled(places: np.ndarray, sizes: np.ndarray, salts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where each place of 0 to its size - 1 goes when these are shuffled, without the others being looked at.

    Places, sizes and salts are `[n]`, and so is what comes back. One shuffle for each salt, a permutation that the
    keys, an even number, choose. It is a Feistel network on the places written as row and column of a table that is
    about square, one of them moved by a number that depends on the other in every round; a place outside the size is
    sent on until it is inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    rows = np.ceil(np.sqrt(sizes)).astype(np.int64)
    rows += rows % 2  # moving within rows of odd length, in tables of odd size, would leave out every other order
    columns = -(-sizes // rows)
    salt = _mixed(salts.astype(np.uint64))
    found = places.copy()
    left = np.arange(len(places))
    while len(left):
        row, column = np.divmod(found[left], columns[left])
        for row_key, column_key in keys.reshape(-1, 2):
            row = (row + _drawn(column, row_key, salt[left])) % rows[left]
            column = (column + _drawn(row, column_key, salt[left])) % columns[left]
        found[left] = row * columns[left] + column
        left = left[found[left] >= sizes[left]]
    return found


def _drawn(values: np.ndarray, key: np.uint64, salt: np.ndarray) -> np.ndarray:
    """32 bits for each of the values `[n]`, which depend on it, the key and the salt."""
    return (_mixed(_mixed(values.astype(np.uint64) + key) ^ salt) >> np.uint64(32)).astype(np.int64)


def _mixed(values: np.ndarray) -> np.ndarray:
    """64 bits of which each depends on all: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _keys(lengths: np.ndarray) -> np.ndarray:
    """One number for two lengths, in the order of [`LengthOrder`]."""
    if lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths are of type {lengths.dtype}: must be integers, numbers of tokens")
    for wrong in (lengths.min(initial=0), lengths.max(initial=0)):
        if not 0 <= wrong < _HALF:
            raise ValueError(f"lengths hold {wrong}: must be at least 0 and below 2**31, numbers of tokens")
    source, target = lengths.astype(np.int64).T
    longer, difference = np.maximum(source, target), source - target
    return (longer << 32) + np.where(longer % 2, -difference, difference) + _HALF


def _lengths(keys: np.ndarray) -> np.ndarray:
    """`[C, 2]`: what [`_keys`] was given."""
    longer = keys >> 32
    difference = (keys & (2 * _HALF - 1)) - _HALF
    difference = np.where(longer % 2, -difference, difference)
    return np.stack([longer + np.minimum(difference, 0), longer - np.maximum(difference, 0)], axis=1)
