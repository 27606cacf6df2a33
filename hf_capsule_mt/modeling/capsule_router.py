"""The modules that every routing site is made of: separate matrices for separate inputs, and a router.

Legend: `…` batch and positions, `I` input capsules, `O` output capsules, `D` their size.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_capsule_mt.modeling.routing_record import open_record
from hf_capsule_mt.modeling.split_linear import SplitLinear
from hf_capsule_mt.ops.routing import dynamic_routing, em_routing


class CapsuleModule(nn.Module):
    """A module that initialises its own parameters; `_init_weights` of our models calls it.

    Only its own: Transformers has filled the children, and a parameter that is filled is left alone from then on.
    """

    def init_capsule_weights(self, std: float) -> None:
        """Fill the parameters with the functions of `transformers.initialization`, which leave loaded ones alone.

        `std` is the model's `init_std`, which plain linear layers start with too. Every subclass defines this one; a
        model with one that does not is an error when it is built.
        """
        raise NotImplementedError(f"{type(self).__name__} must define how its own parameters start")


def votes_start_std(algorithm: str, inputs: int, width: int) -> float:
    """How large vote weights start so that the aggregate starts about as large as the features it is made of.

    For F with weights of `fan_in ** -0.5`: pre-activations are as large as the features, the ReLU halves their second
    moment, the mean over the inputs divides it by their number, and the presence A of EM routing, 1/2 at first, by 4.
    With `init_std` for both, a routed projection started at a tenth of the linear one it replaces, an aggregate in the
    place of H^L at a fifteenth of it; and votes that small, against EM's variance floor of 1, are not routed at all.
    """
    return (2.0 * inputs / width) ** 0.5 * (2.0 if algorithm == "em_routing" else 1.0)


class ScaledSplitLinear(CapsuleModule, SplitLinear):
    """[`SplitLinear`] that starts with weights of the size `start_std`; None is the model's `init_std`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, start_std: float | None = None) -> None:
        super().__init__(in_features, out_features, bias)
        self.start_std = start_std

    def init_capsule_weights(self, std: float) -> None:
        if self.start_std is not None:
            init.normal_(self.weight, std=self.start_std)


class StackedLinear(CapsuleModule):
    """One linear map for each of I inputs, as a single batched product: `[…, I, in]` to `[…, I, out]`.

    It starts with weights of the size `start_std`, None is the model's `init_std`; with `bias_start` as that constant:
    weights 0, bias `bias_start`.
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
        self.weight = nn.Parameter(torch.empty(inputs, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(inputs, 1, out_features)) if bias else None

    def init_capsule_weights(self, std: float) -> None:
        scale = std if self.start_std is None else self.start_std
        init.normal_(self.weight, std=scale if self.bias_start is None else 0.0)
        if self.bias is not None:
            init.constant_(self.bias, self.bias_start or 0.0)

    def forward(self, features: Tensor) -> Tensor:
        lead = features.shape[:-2]
        stacked = features.reshape(-1, self.inputs, self.in_features).transpose(0, 1)  # [I, N, in]
        weight = self.weight.transpose(1, 2)  # stored as nn.Linear stores it, [I, out, in]
        mapped = torch.bmm(stacked, weight) if self.bias is None else torch.baddbmm(self.bias, stacked, weight)
        return mapped.transpose(0, 1).unflatten(0, lead)

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, in_features={self.in_features}, out_features={self.out_features}"


class CapsuleRouter(CapsuleModule):
    """Routes votes `[…, I, O, D]` to one vector `[…, O * D]`, the output capsules side by side.

    Args:
        algorithm: `"em_routing"`, `"dynamic_routing"` (DLA) or `"simple_routing"` (HEADS).
        site: the name under which assignments are recorded.
    """

    def __init__(
        self,
        algorithm: str,
        num_capsules: int,
        iterations: int,
        variance_floor: float,
        stop_assignment_gradient: bool,
        site: str,
    ) -> None:
        super().__init__()
        self.algorithm, self.num_capsules, self.iterations = algorithm, num_capsules, iterations
        self.variance_floor, self.stop_assignment_gradient = float(variance_floor), stop_assignment_gradient
        self.site = site
        if algorithm == "em_routing":
            self.beta_a = nn.Parameter(torch.empty(num_capsules))
            self.beta_u = nn.Parameter(torch.empty(num_capsules))

    def init_capsule_weights(self, std: float) -> None:
        if self.algorithm == "em_routing":
            init.zeros_(self.beta_a)
            init.zeros_(self.beta_u)

    def forward(self, votes: Tensor, activations: Tensor | None = None) -> Tensor:
        """`votes` `[…, I, O * D]`, `activations` `[…, I]` or None."""
        votes = votes.unflatten(-1, (self.num_capsules, -1))
        record = open_record()
        if record is None:
            return self._route(votes, activations, False).flatten(-2)
        if record.detached:
            with torch.no_grad():
                _, assignments = self._route(votes, activations, True)
            capsules = self._route(votes, activations, False)
        else:
            capsules, assignments = self._route(votes, activations, True)
        record.assignments[self.site] = assignments
        return capsules.flatten(-2)

    def _route(self, votes: Tensor, activations: Tensor | None, return_assignments: bool):
        if self.algorithm == "em_routing":
            return em_routing(
                votes,
                activations,
                self.beta_a,
                self.beta_u,
                iterations=self.iterations,
                variance_floor=self.variance_floor,
                return_assignments=return_assignments,
                stop_assignment_gradient=self.stop_assignment_gradient,
            )
        return dynamic_routing(
            votes,
            iterations=self.iterations,
            normalize=self.algorithm == "simple_routing",
            return_assignments=return_assignments,
            stop_assignment_gradient=self.stop_assignment_gradient,
        )

    def extra_repr(self) -> str:
        return f"{self.algorithm}, num_capsules={self.num_capsules}, iterations={self.iterations}, site={self.site!r}"
