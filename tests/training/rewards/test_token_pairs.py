"""Training pairs in memory: few bytes a token, and the same numbers as in lists."""

import tracemalloc

import datasets
import numpy as np
import pytest
from reward_pairs import WordTokenizer, make_pairs

from hf_capsule_mt.training.rewards import TokenPairs
from hf_capsule_mt.training.rewards.token_pairs import TokenRows


def test_a_corpus_needs_few_bytes_a_token() -> None:
    """Lists of integers need 40."""
    rows = [[300 + (7 * row + place) % 5_000 for place in range(20)] for row in range(500)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})
    TokenPairs.from_dataset(dataset, WordTokenizer())  # what is imported on first use stays
    tracemalloc.start()
    pairs = TokenPairs.from_dataset(dataset, WordTokenizer())
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs.sources) == 500 and size < 4 * 2 * 500 * 20


@pytest.mark.parametrize("largest", [80, 2**16 - 1, 2**16, 2**40])
def test_rows_are_lists_of_their_numbers(largest: int) -> None:
    """Also where they do not fit the narrow type that most vocabularies need."""
    rows = [[1, 2], [], [largest, 4, 5], [-1]]
    packed = TokenRows(rows)
    assert [*packed] == rows and len(packed) == 4 and packed.largest == largest
    assert packed[2] == packed[np.int64(-2)] == rows[2] and type(packed[0][0]) is int
    assert packed[1:3] == rows[1:3] and packed[::-2] == rows[::-2]
    assert packed.lengths.tolist() == [2, 0, 3, 1]
    assert packed == TokenRows(rows) and packed != TokenRows(rows[:3]) and packed != TokenRows([[1], [2], *rows[2:]])
    with pytest.raises(IndexError):
        packed[4]


def test_empty_rows_have_no_largest_token() -> None:
    assert TokenRows([]).largest == TokenRows([[]]).largest == 0 and [*TokenRows([[]])] == [[]]


def test_pairs_are_packed_once() -> None:
    pairs = make_pairs(3)
    assert TokenPairs(pairs.sources, pairs.targets).sources is pairs.sources
    assert pairs == make_pairs(3) and pairs != make_pairs(3, seed=1) and pairs != "pairs"
