"""The order of the training pairs, by the seed and the number of the epoch alone.

A run that is taken up in the middle of an epoch then sees the pairs that it has not seen.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler


class LengthGroupedOrder(Sampler[int]):
    """Transformers' order of `train_sampling_strategy="group_by_length"`, drawn anew for each epoch from its number.

    Transformers draws it from training's random numbers. These are others when a run is taken up again.
    """

    def __init__(self, sampler: LengthGroupedSampler, seed: int) -> None:
        self.sampler, self.seed, self.epoch = sampler, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(self.sampler)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell every sampler inside a loader which epoch begins.

    Accelerate tells only the outer ones, so that the order of the pairs would begin anew after a stop in several
    processes.
    """
    sampler = getattr(loader, "batch_sampler", None)
    while sampler is not None:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
