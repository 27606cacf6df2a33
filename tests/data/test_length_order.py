"""Pairs sorted by length on disk: the order, the shuffle that needs no list, and memory that does not grow."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_capsule_mt.data import TokenBatchSampler, disk_arrays, length_order, pair_lengths
from hf_capsule_mt.data.disk_arrays import array_on_disk
from hf_capsule_mt.data.length_order import LengthOrder, shuffle_keys, shuffled

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
    assert order.pairs(0, len(order)).tolist() == expected_order(pairs)
    assert order.lengths[order.classes(0, len(order))].tolist() == table[expected_order(pairs)].tolist()


@given(pairs=PAIRS, seed=st.integers(0, 99), data=st.data())
def test_equal_lengths_are_shuffled_among_themselves(
    pairs: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    table, order = np.asarray(pairs), LengthOrder([np.asarray(pairs)])
    found = order.pairs(0, len(pairs), shuffle_keys(seed))
    assert sorted(found.tolist()) == list(range(len(pairs)))
    assert table[found].tolist() == table[order.pairs(0, len(pairs))].tolist()
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(pairs) - 1), st.integers(1, len(pairs)))))
    if start < end:
        assert order.pairs(start, end, shuffle_keys(seed)).tolist() == found[start:end].tolist()


def shuffle(size: int, seed: int, salt: int = 0) -> list[int]:
    many = np.ones(size, dtype=np.int64)
    return shuffled(np.arange(size), size * many, salt * many, shuffle_keys(seed)).tolist()


@pytest.mark.parametrize("size", [*range(1, 40), 99, 100, 101, 1023, 1024, 30_011])
def test_a_shuffle_is_a_permutation(size: int) -> None:
    for seed in range(3):
        assert sorted(shuffle(size, seed)) == list(range(size))
    assert size < 9 or len({tuple(shuffle(size, seed, salt)) for seed in range(3) for salt in range(3)}) == 9


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_few_come_about_equally_often(size: int) -> None:
    draws, orders = 2400, {2: 2, 3: 6, 4: 24}[size]
    counts = Counter(tuple(shuffle(size, seed, salt)) for seed in range(60) for salt in range(40))
    assert len(counts) == orders
    wanted = draws / orders
    # Chi squared; of good draws one in 10,000 is above 15.1, 25.7 and 57, and these are always the same.
    assert sum((count - wanted) ** 2 / wanted for count in counts.values()) < {2: 15.1, 3: 25.7, 4: 57.0}[size]


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
    found = pair_lengths.ArrowLengths(rows)
    assert found.folder == tmp_path / "rows"
    one, other = TokenBatchSampler(lengths, 300, seed=3), TokenBatchSampler(found, 300, seed=3)
    assert list(one) == list(other) and one.padding_share == other.padding_share
    assert set(tmp_path.rglob("*")) == files, "the file has a name"


def test_a_folder_nobody_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = saved(tmp_path / "rows", lengths_of(10))
    monkeypatch.setattr(pair_lengths.os, "access", lambda folder, mode: folder != tmp_path / "rows")
    monkeypatch.setattr(pair_lengths.tempfile, "gettempdir", lambda: str(tmp_path))
    assert pair_lengths.ArrowLengths(rows).folder == tmp_path
    assert pair_lengths.ArrowLengths(datasets.Dataset.from_list([{"input_ids": [1], "labels": [2]}])).folder is None


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_lengths, "_BLOCK", 2_000)
    peaks = []
    for count in (10_000, 10_000, 200_000):  # once for what is loaded when it is first used
        rows = saved(tmp_path / str(count), lengths_of(count))
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            sampler = TokenBatchSampler(pair_lengths.pair_lengths(rows), 3_000, seed=1)
            pairs = sum(map(len, sampler))
            assert sampler.padding_share < 0.3
            peaks.append(tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before)
        finally:
            tracemalloc.stop()
        assert pairs == count
    # One byte for every side would be 380 kB more, an order of the indices 760 kB.
    assert peaks[2] - peaks[1] < 50_000


def test_an_array_on_disk_can_be_written(tmp_path: Path) -> None:
    found = array_on_disk(300_000, np.uint64, tmp_path)
    assert not found.any() and not list(tmp_path.iterdir())
    found[:] = np.arange(300_000)
    assert int(found.sum()) == 300_000 * 299_999 // 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(dir: Any) -> Any:
        return open("/dev/full", "w+b")

    monkeypatch.setattr(disk_arrays.tempfile, "TemporaryFile", full)
    with pytest.raises(
        OSError, match="No space left on device: 4,000 bytes are needed for a temporary file: '.*disk'"
    ):
        LengthOrder([lengths_of(1000)], tmp_path / "disk")
    assert length_order.array_on_disk is array_on_disk
