"""The parts of Marian and its capsule models in int8 that are no plain linear map.

Legend: `R` rows, `L` layers, `d` model width, `I` inputs of a stacked linear map.
"""

import copy
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_capsule_mt.inference.int8.layers import Int8Linear, Int8Module, int8_rounding, pack
from hf_capsule_mt.inference.int8.native import NativeWeights, aggregate, linear_numbers, numbers
from hf_capsule_mt.inference.search.choose import runs_as_defined
from hf_capsule_mt.modeling.capsules.head_aggregation import GatedRoutedProjection
from hf_capsule_mt.modeling.capsules.layer_aggregation import RoutedCombination
from hf_capsule_mt.modeling.capsules.linear_maps import StackedLinear
from hf_capsule_mt.modeling.capsules.router import CapsuleRouter
from hf_capsule_mt.modeling.capsules.routing_record import open_record
from hf_capsule_mt.ops.native_library import address, tensors_are_traced

MOST_ROWS = 64  # of one call, which runs on one thread: more are PyTorch's and those of the routing functions

Copies = dict[int, Any]  # of `copy.deepcopy`: what takes the place of an object, by the object's id


class Int8StackedLinear(Int8Module):
    """Stands for [`~hf_capsule_mt.modeling.capsules.linear_maps.StackedLinear`]: one product for each input."""

    bias: Tensor | None

    def __init__(self, stacked: StackedLinear) -> None:
        super().__init__()
        self.rounding = int8_rounding()
        self.packed = [pack(weight) for weight in stacked.weight]
        self.register_buffer(
            "bias", None if stacked.bias is None else stacked.bias.detach().float().squeeze(1).contiguous().clone()
        )

    def forward(self, features: Tensor) -> Tensor:
        """`[…, I, in]` to `[…, I, out]`."""
        biases = [None] * len(self.packed) if self.bias is None else self.bias
        each = zip(features.unbind(-2), self.packed, biases, strict=True)
        return torch.stack([weight(rows, bias, self.rounding.levels, True) for rows, weight, bias in each], dim=-2)


class Int8GatedProjection(nn.Module):
    """Stands for [`~hf_capsule_mt.modeling.capsules.head_aggregation.GatedRoutedProjection`]."""

    def __init__(self, projection: GatedRoutedProjection, copies: Copies) -> None:
        super().__init__()
        self.linear = Int8Linear.of(projection)
        self.routed = copy.deepcopy(projection.routed, copies)
        self.gate = copy.deepcopy(projection.gate, copies)

    def forward(self, heads: Tensor) -> Tensor:
        return self.linear(heads) + self.gate * self.routed(heads)


def stacked_linear(stacked: StackedLinear, copies: Copies) -> nn.Module:
    """The logits of EM routing, one output an input, stay as they are: they take no time, and decide much."""
    return copy.deepcopy(stacked, copies) if stacked.out_features == 1 else Int8StackedLinear(stacked)


def decoder_layer(layer: Any, copies: Copies) -> nn.Module:
    """The layer, with query, key and value as one product beside the three that Transformers calls one by one."""
    quantized: Any = copy.deepcopy(layer, copies)
    attention = layer.self_attn
    three = [attention.q_proj, attention.k_proj, attention.v_proj]
    if all(type(projection) is nn.Linear for projection in three):  # an adapter's are others
        weight, bias = (torch.cat([getattr(each, name) for each in three]) for name in ("weight", "bias"))
        quantized.self_attn.query_key_value = Int8Linear(weight, bias)
    return quantized


class Int8RoutedCombination(RoutedCombination):
    """Stands for [`~hf_capsule_mt.modeling.capsules.layer_aggregation.RoutedCombination`]; one call where compiled."""

    def forward(self, stacked: Tensor) -> Tensor:
        rows = stacked.reshape(-1, *stacked.shape[-2:])
        usual = stacked.dtype == torch.float32 and stacked.device.type == "cpu" and len(rows) <= MOST_ROWS
        alone = open_record() is None and not torch.compiler.is_compiling() and not tensors_are_traced()
        plan = routing_plan(self) if usual and alone else None
        if plan is None:
            return super().forward(stacked)
        rows = rows.contiguous()
        return aggregate(plan.plan, rows).view(*stacked.shape[:-2], stacked.shape[-1])


def routed_combination(combination: RoutedCombination, copies: Copies) -> nn.Module:
    quantized = copy.deepcopy(combination, copies)
    quantized.__class__ = Int8RoutedCombination
    return quantized


class RoutingPlan(NamedTuple):
    """The numbers of an `Aggregation` of `csrc/aggregation.h`, and the tensors that they point into."""

    plan: Tensor
    kept: tuple[Tensor, ...]


def routing_plan(combination: Any) -> RoutingPlan | None:
    """None where the compiled part does not know what combines the layers."""
    if type(combination) is not Int8RoutedCombination or type(combination.router) is not CapsuleRouter:
        return None
    router: Any = combination.router
    activation: Any = combination.activation
    capsules: Any = combination.capsules
    votes: Any = combination.votes
    known = type(votes) is Int8StackedLinear and type(capsules) in (Int8Linear, Int8StackedLinear)
    if not known or not runs_as_defined(*combination.modules()):
        return None
    packed = [*votes.packed, *([capsules.packed] if type(capsules) is Int8Linear else capsules.packed)]
    if not all(isinstance(weights, NativeWeights) for weights in packed):
        return None
    levels = votes.rounding.levels
    if type(capsules) is Int8Linear:
        inputs = linear_numbers(capsules.packed, capsules.bias, levels)
    else:
        each_layer = zip(capsules.packed, capsules.bias, strict=True)
        inputs = tuple(chain.from_iterable(linear_numbers(*each, levels) for each in each_layer))
    linears = numbers(inputs), numbers([linear_numbers(weights, None, levels) for weights in votes.packed])
    em = router.algorithm == "em_routing"
    layers, width = len(votes.packed), votes.packed[0].in_features
    floats = torch.tensor([router.inverse_temperature, router.variance_floor], dtype=torch.float64, device="cpu")
    tensors = [activation.weight, router.beta_a, router.beta_u] if em else [None] * 3
    tensors = [None if each is None else each.detach().float().contiguous() for each in tensors]
    kept = (*(each for each in tensors if each is not None), *linears)
    sizes = [layers, width, router.num_capsules, router.iterations]
    flags = [em, combination.sees_all_layers, router.algorithm == "simple_routing"]
    addresses = [*map(address, tensors), *(address(each, torch.int64) for each in linears)]
    plan = torch.cat([numbers([*sizes, *flags]), floats.view(torch.int64), numbers(addresses)])
    return RoutingPlan(plan, kept)
