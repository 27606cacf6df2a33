"""Pairs sorted by length on disk: the order, the shuffle that needs no list, and memory that does not grow."""

from __future__ import annotations

import errno
import gc
import math
import tempfile
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_capsule_mt.data import TokenBatchSampler, pair_lengths
from hf_capsule_mt.data.batches import dataset_lengths, disk_arrays, token_batches
from hf_capsule_mt.data.batches.dataset_lengths import ArrowLengths
from hf_capsule_mt.data.batches.disk_arrays import array_on_disk
from hf_capsule_mt.data.batches.length_order import LengthOrder, shuffle_keys, shuffled

PAIRS = st.lists(st.tuples(st.integers(0, 9) | st.integers(0, 2**31 - 1), st.integers(0, 9)), min_size=1, max_size=50)


def expected_order(pairs: list[tuple[int, int]]) -> list[int]:
    def key(index: int) -> tuple[int, int, int]:
        source, target = pairs[index]
        longer = max(source, target)
        return longer, target - source if longer % 2 else source - target, index

    return sorted(range(len(pairs)), key=key)


@given(pairs=PAIRS, block=st.integers(1, 60))
def test_the_longer_side_then_the_difference_up_and_down_then_the_index(
    pairs: list[tuple[int, int]], block: int
) -> None:
    table = np.asarray(pairs)
    order = LengthOrder([table[start : start + block] for start in range(0, len(table), block)])
    places = np.arange(len(pairs))
    assert order.pairs(places).tolist() == expected_order(pairs) and len(order) == len(pairs)
    assert order.lengths[order.classes(places)].tolist() == table[expected_order(pairs)].tolist()


@given(pairs=PAIRS, seed=st.integers(0, 99), data=st.data())
def test_equal_lengths_are_shuffled_among_themselves(
    pairs: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    table, order, all_places = np.asarray(pairs), LengthOrder([np.asarray(pairs)]), np.arange(len(pairs))
    found = order.pairs(all_places, shuffle_keys(seed))
    assert sorted(found.tolist()) == all_places.tolist()
    assert table[found].tolist() == table[order.pairs(all_places)].tolist()
    some = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1))
    assert order.pairs(np.asarray(some), shuffle_keys(seed)).tolist() == found[some].tolist()


def shuffle(size: int, seed: int, salt: int = 0) -> list[int]:
    many = np.ones(size, dtype=np.int64)
    return shuffled(np.arange(size), size * many, salt * many, shuffle_keys(seed)).tolist()


@pytest.mark.parametrize("size", [*range(1, 40), 99, 100, 101, 1023, 1024, 30_011])
def test_a_shuffle_is_a_permutation(size: int) -> None:
    for seed in range(3):
        assert sorted(shuffle(size, seed)) == list(range(size))
    assert size < 9 or len({tuple(shuffle(size, seed, salt)) for seed in range(3) for salt in range(3)}) == 9


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_few_come_about_equally_often(size: int) -> None:
    draws, orders = 50_000, math.factorial(size)
    places, salts = np.tile(np.arange(size), draws), np.repeat(np.arange(draws), size)
    found = shuffled(places, np.full(len(places), size), salts, shuffle_keys(size)).reshape(draws, size)
    counts = Counter(map(tuple, found.tolist()))
    assert len(counts) == orders
    wanted = draws / orders
    # The spread beyond that of as many good draws, as a part of the mean: 0.15 of it at most.
    spread = sum((counts[order] - wanted) ** 2 for order in counts) / orders
    assert spread - wanted < (0.15 * wanted) ** 2, f"{np.sqrt(max(spread - wanted, 0)) / wanted:.3f}"
    for place in range(size):  # where each of them goes
        assert np.abs(np.bincount(found[:, place]) * size / draws - 1).max() < 0.05


@pytest.mark.parametrize("size", [7, 8, 9, 25, 49])
def test_half_of_the_orders_are_odd(size: int) -> None:
    draws = 2_000
    places, salts = np.tile(np.arange(size), draws), np.repeat(np.arange(draws), size)
    found = shuffled(places, np.full(len(places), size), salts, shuffle_keys(size)).reshape(draws, size)
    swapped = sum((found[:, [one]] > found[:, one + 1 :]).sum(axis=1) for one in range(size - 1))
    assert 0.45 < (swapped % 2).mean() < 0.55


def test_epochs_draw_all_orders_equally_often() -> None:
    counts = Counter(
        tuple(shuffled(np.arange(4), np.full(4, 4), np.full(4, 7), shuffle_keys(1, epoch)).tolist())
        for epoch in range(2_400)
    )
    # 24 orders, 100 each; of good draws one in 10,000 is further off, and these are always the same.
    assert len(counts) == 24 and sum((count - 100) ** 2 / 100 for count in counts.values()) < 57


def test_neighbours_do_not_stay_together() -> None:
    size = 10_000
    found = np.asarray([shuffle(size, seed) for seed in range(5)])
    steps = np.abs(np.diff(found, axis=1)) / size
    # Of numbers drawn at will the difference is a third on average, and one in five hundred is below a thousandth.
    assert np.abs(steps.mean(axis=1) - 1 / 3).max() < 0.01
    assert (steps < 1e-3).mean() < 0.004
    assert max(np.abs(np.corrcoef(found)[np.triu_indices(5, 1)])) < 0.05
    assert len(np.unique(np.diff(found, axis=1))) > 0.5 * size


def saved(folder: Path, lengths: np.ndarray) -> datasets.Dataset:
    """A tokenised data set, memory-mapped."""
    columns = {}
    for name, side in zip(("labels", "input_ids"), lengths.T[::-1], strict=True):
        offsets = np.concatenate([[0], np.cumsum(side)]).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, np.zeros(offsets[-1], dtype=np.int8))
    datasets.Dataset(pa.table(columns)).save_to_disk(folder)
    return datasets.load_from_disk(str(folder))


def lengths_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 12, (count, 2))


def test_on_disk_as_in_memory(tmp_path: Path) -> None:
    lengths = lengths_of(3000)
    rows = saved(tmp_path / "rows", lengths)
    files = set(tmp_path.rglob("*"))
    found = pair_lengths(rows)
    assert found.folders[0] == tmp_path / "rows"
    one, other = TokenBatchSampler(lengths, 300, seed=3), TokenBatchSampler(found, 300, seed=3)
    assert list(one) == list(other) and one.padding_share == other.padding_share
    assert set(tmp_path.rglob("*")) == files, "the file has a name"


def test_a_folder_nobody_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = saved(tmp_path / "rows", lengths_of(10))
    tried, real = [], tempfile.TemporaryFile

    def refused(dir: Any, **options: Any) -> Any:
        tried.append(Path(dir))
        if len(tried) == 1:
            raise PermissionError(13, "Permission denied")
        return real(dir=dir, **options)

    monkeypatch.setattr(disk_arrays.tempfile, "TemporaryFile", refused)
    assert sorted(pair for batch in TokenBatchSampler(pair_lengths(rows), 99) for pair in batch) == list(range(10))
    assert tried[0] == tmp_path / "rows" and len(tried) > 1
    assert pair_lengths(datasets.Dataset.from_list([{"input_ids": [1], "labels": [2]}])).folders is None


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_lengths, "_BLOCK_PAIRS", 2_000)
    monkeypatch.setattr(token_batches, "_AHEAD", 1)
    peaks, arrow = [], [0]
    real = ArrowLengths.__iter__

    def watched(self: ArrowLengths) -> Any:
        for block in real(self):
            arrow.append(pa.total_allocated_bytes())
            yield block

    monkeypatch.setattr(ArrowLengths, "__iter__", watched)
    for count in (10_000, 10_000, 200_000):  # once for what is loaded when it is first used
        rows = saved(tmp_path / str(count), lengths_of(count))
        before, arrow[:] = pa.total_allocated_bytes(), [0]
        tracemalloc.start()
        try:
            sampler = TokenBatchSampler(pair_lengths(rows), 3_000, seed=1, max_pairs=200)
            pairs = sum(map(len, sampler))
            assert sampler.padding_share < 0.3
            peaks.append(tracemalloc.get_traced_memory()[1] + max(arrow) - before)
        finally:
            tracemalloc.stop()
        assert pairs == count
    # One byte for every side would be 380 kB more, an order of the indices 760 kB.
    assert peaks[2] - peaks[1] < 50_000


@pytest.mark.parametrize("reserves", [True, False])
def test_an_array_on_disk_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserves: bool) -> None:
    if not reserves:
        monkeypatch.delattr(disk_arrays.os, "posix_fallocate", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of files that are not closed
        (tmp_path / "file").write_text("no folder")
        found = array_on_disk(300_001, np.uint64, tmp_path / "file" / "within", tmp_path / "made" / "here")
        gc.collect()
    assert not found.any() and found.shape == (300_001,) and not list((tmp_path / "made" / "here").iterdir())
    found[:] = np.arange(300_001)
    assert int(found.sum()) == 300_000 * 300_001 // 2


@pytest.mark.parametrize("reserves", [True, False])
def test_no_room_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserves: bool) -> None:
    """Files may not become longer than 4000 bytes, in any folder."""
    resource = pytest.importorskip("resource")
    if not reserves:
        monkeypatch.delattr(disk_arrays.os, "posix_fallocate", raising=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=r"4,004 bytes are needed .*/here: File too large; the folder for temp"
        ) as said:
            array_on_disk(1001, np.uint32, tmp_path / "here")
        assert said.value.errno == errno.EFBIG
        assert len(array_on_disk(1000, np.uint32, tmp_path)) == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
