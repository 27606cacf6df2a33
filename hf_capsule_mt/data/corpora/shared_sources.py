"""Sentences that two corpora share: a model that was trained on a test sentence has seen its translation."""

import datasets
import pyarrow
import pyarrow.compute as compute

ROWS = 10_000  # read at a time


def count_shared_sources(training: datasets.Dataset, other: datasets.Dataset, source: str) -> int:
    """How many pairs of `other` have a source that is also one of `training`; `source` is the language."""
    sentences = [row[source] for row in other["translation"]]
    searched, shared = pyarrow.array(sorted(set(sentences)), pyarrow.string()), set()
    for table in training.with_format("arrow").iter(ROWS):
        column = compute.struct_field(table["translation"].combine_chunks(), source).cast(pyarrow.string())
        shared |= {*column.filter(compute.is_in(column, value_set=searched)).to_pylist()}
    return sum(sentence in shared for sentence in sentences)
