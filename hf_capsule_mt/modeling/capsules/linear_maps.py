"""The linear maps of the routing modules, and their initial weights.

Legend: `…` batch and positions, `I` input capsules.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_capsule_mt.modeling.capsules.split_linear import SplitLinear


class CapsuleModule(nn.Module):
    """A module that initialises its own parameters. `_init_weights` of our models calls it.

    Transformers initialises its children before, and never fills a parameter twice.
    """

    def init_capsule_weights(self, std: float) -> None:
        """Fill the parameters by `transformers.initialization`, whose functions do not change loaded weights.

        `std` is the model's `init_std`, which plain linear layers also use. Every subclass must define this method.
        """
        raise NotImplementedError(f"{type(self).__name__} must define init_capsule_weights, to fill its parameters")


class ConstantLinear(CapsuleModule, nn.Linear):
    """A linear map that starts with weights 0: all outputs are `start`.

    With `start=0.0`, a part added to a pretrained model does not change its outputs at first.
    """

    def __init__(self, in_features: int, out_features: int, start: float = 0.0) -> None:
        super().__init__(in_features, out_features)
        self.start = start

    def init_capsule_weights(self, std: float) -> None:
        init.zeros_(self.weight)
        init.constant_(self.bias, self.start)


class ScaledLinear(CapsuleModule, nn.Linear):
    """A linear map without bias that starts with weights of size `start_std`, independent of `init_std`.

    `start_std=None` makes outputs as large as inputs. Routing compares votes with capsules of length at most 1: with
    votes near 0 it starts uniform, and stays uniform.
    """

    def __init__(self, in_features: int, out_features: int, start_std: float | None = None) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.start_std = in_features**-0.5 if start_std is None else start_std

    def init_capsule_weights(self, std: float) -> None:
        init.normal_(self.weight, std=self.start_std)


class ScaledSplitLinear(CapsuleModule, SplitLinear):
    """[`SplitLinear`] that starts with weights of size `start_std`; None means the model's `init_std`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, start_std: float | None = None) -> None:
        super().__init__(in_features, out_features, bias)
        self.start_std = start_std

    def init_capsule_weights(self, std: float) -> None:
        if self.start_std is not None:
            init.normal_(self.weight, std=self.start_std)


class StackedLinear(CapsuleModule):
    """One linear map for each of I inputs, as a single batched product: `[…, I, in]` to `[…, I, out]`.

    It starts with weights of size `start_std`; None means the model's `init_std`. With `bias_start` it starts as this
    constant: weights 0, bias `bias_start`.
    """

    def __init__(
        self,
        inputs: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        bias_start: float | None = None,
        start_std: float | None = None,
    ) -> None:
        super().__init__()
        self.bias_start, self.start_std = bias_start, start_std
        self.inputs, self.in_features, self.out_features = inputs, in_features, out_features
        self.weight = nn.Parameter(torch.empty(inputs, out_features, in_features))  # as nn.Linear stores it
        self.bias = nn.Parameter(torch.empty(inputs, 1, out_features)) if bias else None

    def init_capsule_weights(self, std: float) -> None:
        scale = std if self.start_std is None else self.start_std
        init.normal_(self.weight, std=scale if self.bias_start is None else 0.0)
        if self.bias is not None:
            init.constant_(self.bias, self.bias_start or 0.0)

    def forward(self, features: Tensor) -> Tensor:
        lead = features.shape[:-2]
        stacked = features.reshape(-1, self.inputs, self.in_features).transpose(0, 1)  # [I, N, in]
        weight = self.weight.flatten(0, 1).unflatten(0, (self.inputs, -1)).mT  # [I, in, out]; with .mT alone DDP warns
        mapped = torch.bmm(stacked, weight) if self.bias is None else torch.baddbmm(self.bias, stacked, weight)
        return mapped.transpose(0, 1).unflatten(0, lead)

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, in_features={self.in_features}, out_features={self.out_features}"
