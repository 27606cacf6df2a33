"""The order of the training pairs depends only on the seed and the number of the epoch.

A run that is resumed in the middle of an epoch then sees exactly the pairs that it has not seen.
"""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler


class EpochOrder(TrainerCallback):
    """Tells every sampler inside the training loader which epoch begins.

    - Accelerate tells only the outer samplers. In several processes the order would start again after resuming.
    - Transformers draws the order of `train_sampling_strategy="group_by_length"` from training's random numbers, which
      differ after resuming. It gets a generator of its own here.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        epoch = int(state.epoch or 0)
        for sampler in samplers(train_dataloader):
            if isinstance(sampler, LengthGroupedSampler):
                sampler.generator = torch.Generator().manual_seed(self.seed + epoch)
            elif hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)


def samplers(loader: Any) -> Iterator[Any]:
    """The samplers of a loader, from the outermost to the innermost."""
    sampler = getattr(loader, "batch_sampler", None)
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
