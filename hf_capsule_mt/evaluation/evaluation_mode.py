"""Running a model without dropout, whatever mode it was left in."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and afterwards every module of it back into the mode it was in.

    Modules have modes of their own: in training, a frozen encoder is often in evaluation mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
