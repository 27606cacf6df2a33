"""A linear map that the installed package computes on all cores of a CPU when it decodes one sentence."""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn


class SplitLinear(nn.Linear):
    """[`torch.nn.Linear`] with the same parameters and products."""

    # The installed package sets this to `linear_in_parts`. Code in a checkpoint has none.
    in_parts: ClassVar[Callable[[nn.Linear, Tensor], Tensor | None] | None] = None

    def forward(self, features: Tensor) -> Tensor:
        product = None if SplitLinear.in_parts is None else SplitLinear.in_parts(self, features)
        return super().forward(features) if product is None else product
