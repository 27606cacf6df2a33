"""Parameters that a warm start has added train with a learning rate of their own."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from transformers.utils import logging

logger = logging.get_logger(__name__)


def new_parameters(model: nn.Module, missing: Iterable[str]) -> list[nn.Parameter]:
    """The parameters that are new under all their names; a tied parameter has several."""
    missing = set(missing)
    named = list(model.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in named if name not in missing}
    return [parameter for _, parameter in model.named_parameters() if id(parameter) not in loaded]


def split_groups(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
    """Move `parameters` to groups with `learning_rate`; all other settings of their groups stay.

    Call it before the scheduler is made, which then scales both rates.
    """
    moved = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        new = [parameter for parameter in group["params"] if id(parameter) in moved]
        if new:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in moved]
            optimizer.add_param_group({**group, "params": new, "lr": learning_rate})


class NewParameterLearningRate(Trainer):
    """Mixin for a [`Trainer`], listed before it: new parameters have a learning rate of their own.

    Set `missing_keys`, the names that `from_pretrained(..., output_loading_info=True)` reports, and
    `new_parameter_learning_rate` before training. Weight decay, optimizer and schedule stay those of the Trainer.
    """

    model: Any
    optimizer: Any

    missing_keys: frozenset[str] = frozenset()
    new_parameter_learning_rate: float | None = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and self.new_parameter_learning_rate is not None:
            new = new_parameters(self.model, self.missing_keys)
            if not new:
                logger.warning(
                    f"new_parameter_learning_rate={self.new_parameter_learning_rate} changes nothing: the checkpoint "
                    "has all parameters of the model. Set it to null, or start from the checkpoint without capsules, "
                    "to train them at another rate."
                )
            split_groups(optimizer, new, self.new_parameter_learning_rate)
        return optimizer
