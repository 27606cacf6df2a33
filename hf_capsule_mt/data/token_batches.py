"""Batches of like length that hold as many tokens as fit a budget, the same for every process of a run.

Legend: `N` pairs of sentences; a batch of n pairs costs n times (its longest source + its longest target), the tokens
of both sides with their padding.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

Lengths = Sequence[tuple[int, int]] | np.ndarray


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of indices for a [`~torch.utils.data.DataLoader`]: `DataLoader(dataset, batch_sampler=sampler)`.

    Pairs are sorted by length, pairs of equal lengths in an order drawn from `seed` and the epoch, and cut into
    batches where the budget is full; so the number of batches and their shapes are the same in every epoch. The order
    of the batches is drawn for every epoch too. No pair is left out and none comes twice: where the number of batches
    is no multiple of the number of processes, the largest batches are halved until it is. Processes that take a step
    together get batches of like length.

    Every process holds the lengths of all pairs: ten million take 160 MB, and half a gigabyte more while they are
    sorted.

    Args:
        lengths: `[N, 2]`, source and target tokens of every pair.
        max_tokens: of a batch, source and target together, padding included.
        seed: for all drawing.
        num_processes, process_index: of this run; every process builds the sampler with the same other arguments.
        max_pairs: the largest number of pairs in a batch, None for no limit.
        longest_first: nothing is drawn: the longest batches come first, in every epoch. For evaluation.
    """

    def __init__(
        self,
        lengths: Lengths,
        max_tokens: int,
        seed: int = 0,
        num_processes: int = 1,
        process_index: int = 0,
        max_pairs: int | None = None,
        longest_first: bool = False,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if self.lengths.ndim != 2 or self.lengths.shape[1] != 2 or len(self.lengths) == 0:
            raise ValueError(
                f"lengths has shape {list(self.lengths.shape)}: must be [pairs, 2], with at least one pair"
            )
        for name, value in (("max_tokens", max_tokens), ("max_pairs", max_pairs)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: must be an integer of at least 1")
        if not 0 <= process_index < num_processes:
            raise ValueError(f"process_index={process_index}: must be 0 to {num_processes - 1} of {num_processes}")
        if len(self.lengths) < num_processes:
            raise ValueError(f"{len(self.lengths)} pairs cannot be shared out among {num_processes} processes")
        total = self.lengths.sum(axis=1)
        longest = int(total.argmax())
        if total[longest] > max_tokens:
            source, target = map(int, self.lengths[longest])
            raise ValueError(
                f"pair {longest} has {source} source and {target} target tokens, more than max_tokens={max_tokens}: "
                "truncate or drop long pairs, or raise the budget"
            )
        self.max_tokens, self.max_pairs, self.seed, self.longest_first = max_tokens, max_pairs, seed, longest_first
        self.num_processes, self.process_index, self.epoch = num_processes, process_index, 0
        self.starts = self._cut()

    def set_epoch(self, epoch: int) -> None:
        """Draw another order; the Trainer calls this at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of one process, the same in every epoch."""
        return len(self.starts) // self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        ties = np.arange(len(self.lengths)) if self.longest_first else generator.permutation(len(self.lengths))
        order = self._order(ties)
        # Groups of neighbours in the sorted order, one batch for each process, in a drawn order; who of the processes
        # gets which is drawn too, else one of them would always have the longest.
        groups = np.arange(len(self))[::-1] if self.longest_first else generator.permutation(len(self))
        shares = generator.permuted(np.tile(np.arange(self.num_processes), (len(self), 1)), axis=1)
        ends = np.append(self.starts[1:], len(order))
        for group in groups:
            batch = group * self.num_processes + shares[group, self.process_index]
            yield order[self.starts[batch] : ends[batch]].tolist()

    @property
    def padding_share(self) -> float:
        """The part of all tokens in all batches that is padding."""
        sizes = np.diff(np.append(self.starts, len(self.lengths)))
        return 1.0 - self.lengths.sum() / float((sizes * self._longest().sum(axis=1)).sum())

    def _longest(self) -> np.ndarray:
        """`[batches, 2]`: the longest source and target of every batch."""
        ordered = self.lengths[self._order(np.arange(len(self.lengths)))]
        return np.maximum.reduceat(ordered, self.starts, axis=0)

    def _order(self, ties: np.ndarray) -> np.ndarray:
        """Indices sorted by the longer side, within one length by what the sides differ, equal ones as in `ties`.

        The second is sorted up and down in turn, so that it does not jump from one length to the next. On real
        corpora this pads less than sorting by one side, by the sum of both, or in buckets.
        """
        source, target = self.lengths[ties].T
        longer, difference = np.maximum(source, target), source - target
        return ties[np.lexsort((np.where(longer % 2, -difference, difference), longer))]

    def _cut(self) -> np.ndarray:
        """Where the batches start in the sorted order, as many as all processes together can take."""
        ordered = self.lengths[self._order(np.arange(len(self.lengths)))]
        starts = [0]
        while (end := starts[-1] + self._fit(ordered[starts[-1] :])) < len(ordered):
            starts.append(end)
        while len(starts) % self.num_processes:
            sizes = np.diff([*starts, len(ordered)])
            largest = int(sizes.argmax())
            if sizes[largest] == 1:
                raise ValueError(
                    f"{len(ordered)} pairs in {len(starts)} batches cannot be shared out evenly among "
                    f"{self.num_processes} processes: raise the budget"
                )
            starts.insert(largest + 1, starts[largest] + int(sizes[largest]) // 2)
        return np.asarray(starts)

    def _fit(self, ordered: np.ndarray) -> int:
        """How many of the first pairs make a batch."""
        # Looked at together, since one by one takes seconds for millions; n pairs cost at least n times the first.
        first = int(ordered[0].sum())
        most = self.max_tokens // first if first else len(ordered)
        longest = np.maximum.accumulate(ordered[: min(most, self.max_pairs or most)], axis=0).sum(axis=1)
        return int(np.searchsorted(longest * np.arange(1, len(longest) + 1), self.max_tokens, side="right"))


def pair_lengths(dataset: Any) -> np.ndarray:
    """`[N, 2]`: tokens of `input_ids` and of `labels`; of a `datasets.Dataset` read without building the rows."""
    import datasets

    if not isinstance(dataset, datasets.Dataset):
        lengths = []
        for index in range(len(dataset)):
            row = dataset[index]
            _check_columns(row, f"pair {index} of the data set")
            lengths.append((len(row["input_ids"]), len(row["labels"])))
        return np.asarray(lengths)
    _check_columns(dataset.column_names, "the data set")
    sides = []
    for name in ("input_ids", "labels"):
        column = dataset.with_format("arrow", columns=[name])
        chunks = [chunk for part in column.iter(batch_size=10_000) for chunk in part[name].chunks]
        sides.append(np.concatenate([chunk.value_lengths().to_numpy() for chunk in chunks]))
    return np.stack(sides, axis=1)


def _check_columns(found: Container[str], where: str) -> None:
    missing = [name for name in ("input_ids", "labels") if name not in found]
    if missing:
        raise ValueError(f"{where} has no column {missing[0]!r}: tokenize it first, preprocess_pairs")
