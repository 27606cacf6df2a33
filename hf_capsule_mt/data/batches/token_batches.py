"""Batches of like length that hold as many tokens as fit a budget, the same for every process of a run.

Legend: `N` pairs of sentences; a batch of n pairs costs n times (its longest source + its longest target), the tokens
of both sides with their padding.
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from hf_capsule_mt.data.batches.dataset_lengths import ArrowLengths
from hf_capsule_mt.data.batches.length_order import LengthOrder, shuffle_keys

_BLOCK_PAIRS = 100_000
_AHEAD = 16  # batches whose pairs are looked up together
Lengths = Sequence[tuple[int, int]] | np.ndarray | ArrowLengths


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of indices for a [`~torch.utils.data.DataLoader`]: `DataLoader(dataset, batch_sampler=sampler)`.

    Pairs are sorted by length, pairs of equal lengths in an order drawn from `seed` and the epoch, and cut into
    batches where the budget is full; so the number of batches and their shapes are the same in every epoch. The order
    of the batches is drawn for every epoch too. No pair is left out and none comes twice: where the number of batches
    is no multiple of the number of processes, the largest batches are halved until it is. Processes that take a step
    together get batches of like length.

    Memory does not grow with the corpus but for some bytes a batch: of a memory-mapped data set the order of the pairs
    is in a file without a name beside its own, 4 bytes a pair, and nothing that is as long is made for an epoch. (What
    is in use of such a file counts as memory of the process until the system wants it back.)

    Args:
        lengths: `[N, 2]`, source and target tokens of every pair; or of a tokenised data set, `pair_lengths(dataset)`.
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
        for name, value in (("max_tokens", max_tokens), ("max_pairs", max_pairs)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: must be an integer of at least 1")
        if not 0 <= process_index < num_processes:
            raise ValueError(f"process_index={process_index}: must be 0 to {num_processes - 1} of {num_processes}")
        self.order = _ordered(lengths)
        if len(self.order) < num_processes:
            raise ValueError(f"{len(self.order)} pairs cannot be shared out among {num_processes} processes")
        total = self.order.lengths.sum(axis=1)
        longest = int(total.argmax())
        if total[longest] > max_tokens:
            source, target = map(int, self.order.lengths[longest])
            pair = self.order.indices[self.order.firsts[longest]]
            raise ValueError(
                f"pair {pair} has {source} source and {target} target tokens, more than max_tokens={max_tokens}: "
                "truncate or drop long pairs, or raise the budget"
            )
        self.max_tokens, self.max_pairs, self.seed, self.longest_first = max_tokens, max_pairs, seed, longest_first
        self.num_processes, self.process_index, self.epoch = num_processes, process_index, 0
        self.bounds = self._cut()

    def set_epoch(self, epoch: int) -> None:
        """Draw another order; the Trainer calls this at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of one process, the same in every epoch."""
        return (len(self.bounds) - 1) // self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        keys = None if self.longest_first else shuffle_keys(self.seed, self.epoch)
        generator = np.random.default_rng([self.seed, self.epoch])
        # Groups of neighbours in the sorted order, one batch for each process, in a drawn order; who of the processes
        # gets which is drawn too, else one of them would always have the longest.
        groups = np.arange(len(self))[::-1] if self.longest_first else generator.permutation(len(self))
        for some in np.array_split(groups, -(-len(groups) // _AHEAD)):
            shares = [generator.permutation(self.num_processes)[self.process_index] for _ in some]
            batches = some * self.num_processes + shares
            places = [np.arange(*self.bounds[batch : batch + 2]) for batch in batches]
            pairs = self.order.pairs(np.concatenate(places), keys)
            for batch in np.split(pairs, np.cumsum([len(part) for part in places])[:-1]):
                yield batch.tolist()

    @property
    def padding_share(self) -> float:
        """The part of all tokens in all batches that is padding."""
        first, last = (self.order.classes(places) for places in (self.bounds[:-1], self.bounds[1:] - 1))
        # The longest sides of every batch: of the classes from its first to its last, every other slice.
        slices = np.stack([first, last + 1], axis=1).ravel()
        longest = np.maximum.reduceat(np.append(self.order.lengths, [[0, 0]], axis=0), slices, axis=0)[::2]
        padded = int((np.diff(self.bounds) * longest.sum(axis=1)).sum())
        real = int((self.order.lengths.sum(axis=1) * self.order.counts).sum())
        return 1.0 - real / padded if padded else 0.0

    def _cut(self) -> np.ndarray:
        """Where the batches start and end in the sorted order, as many as all processes together can take."""
        bounds = array("q", [0])
        size = source = target = 0  # of the last batch: pairs, and its longest sides
        for lengths, count in zip(self.order.lengths, self.order.counts, strict=True):
            left = int(count)
            while left:
                longer = max(source, int(lengths[0])), max(target, int(lengths[1]))
                fit = self.max_tokens // sum(longer) if any(longer) else size + left
                taken = min(left, min(fit, self.max_pairs or fit) - size)
                if taken > 0:
                    size, left = size + taken, left - taken
                    source, target = longer
                else:
                    bounds.append(bounds[-1] + size)
                    size = source = target = 0
        bounds.append(len(self.order))
        while (batches := len(bounds) - 1) % self.num_processes:
            sizes = np.diff(bounds)
            largest = int(sizes.argmax())
            if sizes[largest] == 1:
                raise ValueError(
                    f"{len(self.order)} pairs in {batches} batches cannot be shared out evenly among "
                    f"{self.num_processes} processes: raise the budget"
                )
            bounds.insert(largest + 1, bounds[largest] + int(sizes[largest]) // 2)
        return np.asarray(bounds)


def _ordered(lengths: Lengths) -> LengthOrder:
    if isinstance(lengths, ArrowLengths):
        return LengthOrder(lengths, lengths.folders)
    table = np.asarray(lengths)
    if table.ndim != 2 or table.shape[1] != 2 or len(table) == 0:
        raise ValueError(f"lengths has shape {list(table.shape)}: must be [pairs, 2], with at least one pair")
    return LengthOrder(np.array_split(table, -(-len(table) // _BLOCK_PAIRS)))
