"""Training pairs as tokens, in few bytes. The rewards learn coverage from them.

Legend: `P` training pairs, `N` tokens of one of their sides.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex, overload

import datasets
import numpy as np

ROWS = 1000  # of a data set, read together
TYPES = "Hiq"  # of tokens: 2, 4 or 8 bytes, the narrowest that holds all of them


class TokenRows(Sequence[list[int]]):
    """Sentences in one array of tokens. A list of integers would need 20 times the memory."""

    def __init__(self, rows: Iterable[Iterable[int]] = ()) -> None:
        self.tokens = array(TYPES[0])  # [N]
        self.bounds = array("q", [0])  # [P + 1]
        for row in rows:
            self.append(row)

    def append(self, row: Iterable[int]) -> None:
        """Add a sentence."""
        tokens = [*row]
        while True:
            code = self.tokens.typecode
            try:
                self.tokens += array(code, tokens)
                break
            except OverflowError:
                if code == TYPES[-1]:
                    raise
                self.tokens = array(TYPES[TYPES.index(code) + 1], self.tokens)
        self.bounds.append(len(self.tokens))

    @property
    def lengths(self) -> Any:
        """Tokens of each sentence, `[P]`, int64."""
        return np.diff(np.frombuffer(self.bounds, dtype=np.int64))

    @property
    def largest(self) -> int:
        """The largest token; 0 without any."""
        return int(np.asarray(self.tokens).max(initial=0))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, place: SupportsIndex) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> list[list[int]]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> list[int] | list[list[int]]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        number = range(len(self))[place]
        return self.tokens[self.bounds[number] : self.bounds[number + 1]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self.tokens[first:end].tolist() for first, end in pairwise(self.bounds))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenRows) and self.bounds == other.bounds and self.tokens == other.tokens


class TokenPairs:
    """Training pairs as token ids without special tokens."""

    def __init__(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources and {len(targets)} targets: the numbers must be equal")
        self.sources, self.targets = (
            side if isinstance(side, TokenRows) else TokenRows(side) for side in (sources, targets)
        )
        if not self.sizes.any():
            raise ValueError("no training pair has words on both sides: coverage is learned from sentence pairs")

    @property
    def sizes(self) -> Any:
        """Cells of each pair, source tokens times target tokens, `[P]`, int64."""
        return self.sources.lengths * self.targets.lengths

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        return zip(self.sources, self.targets, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenPairs) and (self.sources, self.targets) == (other.sources, other.targets)

    @classmethod
    def from_dataset(cls, dataset: Any, tokenizer: Any) -> "TokenPairs":
        """The pairs of rows with `input_ids` and `labels`, as `preprocess_pairs` makes them."""
        if not hasattr(dataset, "__len__") or len(dataset) == 0:
            raise ValueError(
                f"the training set is a {type(dataset).__name__} without a length, or has no rows: coverage is "
                "learned from all training pairs before training; give a data set with a length, or use the reward "
                "bleu or chrf"
            )
        names = getattr(dataset, "column_names", None) or list(dataset[0])
        missing = [name for name in ("input_ids", "labels") if name not in names]
        if missing:
            raise ValueError(
                f"the training set has the columns {', '.join(names)} and no {' and no '.join(missing)}: tokenize it "
                "with preprocess_pairs"
            )
        left_out = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} | {-100}
        sides = TokenRows(), TokenRows()
        for row in rows_of(dataset):
            for side, tokens in zip(sides, row, strict=True):
                side.append(token for token in map(int, tokens) if token not in left_out)
        return cls(*sides)


def rows_of(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """`input_ids` and `labels` of all rows. A `datasets.Dataset` gives many at a time, which is faster."""
    if not isinstance(dataset, datasets.Dataset):
        yield from ((row["input_ids"], row["labels"]) for row in dataset)
        return
    columns = dataset.select_columns(["input_ids", "labels"]).with_format(None)
    for rows in columns.iter(batch_size=ROWS):
        yield from zip(rows["input_ids"], rows["labels"], strict=True)
