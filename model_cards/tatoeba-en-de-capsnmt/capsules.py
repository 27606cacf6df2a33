# Copied from hf_capsule_mt 0.1.0 (capsules.py), Apache-2.0, for trust_remote_code.
import torch
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from torch import Tensor, nn
from transformers import initialization as init
from typing import Any, ClassVar
from .ops import sequence_routing


# modeling/capsules/routing_record.py
"""Collects the assignment probabilities of all routing sites, without passing them through every layer.

A routing module inside attention can return only a tensor. If a record is open on the current thread, each site also
writes its assignments to it, under its own name. If none is open, this costs one look-up.
"""
@dataclass
class RoutingRecord:
    """Assignments `[iterations, batch, positions, inputs, outputs]` by the name of the routing site."""

    assignments: dict[str, Tensor] = field(default_factory=dict)
    # Gradient checkpointing runs a layer twice, and both runs must save the same tensors for backward. The second run
    # has no record, so the first must compute the assignments without a graph.
    detached: bool = False
    # The installed package sets this to a dictionary that a notebook shows.
    dictionary: ClassVar[type[dict[str, Tensor]]] = dict

    def routings(self) -> dict[str, Tensor]:
        """The assignments for the output of a model."""
        return (dict if torch.compiler.is_compiling() else self.dictionary)(self.assignments)


_open_record: ContextVar[RoutingRecord | None] = ContextVar("open_routing_record", default=None)


class _CompiledRecord:
    """Replaces the context variable under torch.compile, which cannot trace one; not safe across threads."""

    def __init__(self) -> None:
        self.current: RoutingRecord | None = None


_compiled_record = _CompiledRecord()  # an object, since PyTorch 2.11 cannot trace attributes of a class


def open_record() -> RoutingRecord | None:
    """The record that routing sites write to; None if no caller asked for routings."""
    return _compiled_record.current if torch.compiler.is_compiling() else _open_record.get()


@contextmanager
def record_routings(enabled: bool | None, detached: bool = False) -> Iterator[RoutingRecord | None]:
    """Open a record if `enabled`. A nested call uses the open one, so the outermost caller gets every site."""
    current = open_record()
    if not enabled or current is not None:
        yield current
        return
    record = RoutingRecord(detached=detached)
    if torch.compiler.is_compiling():
        _compiled_record.current = record
        try:
            yield record
        finally:
            _compiled_record.current = None
        return
    token = _open_record.set(record)
    try:
        yield record
    finally:
        _open_record.reset(token)


# modeling/capsules/split_linear.py
"""A linear map that the installed package computes on all cores of a CPU when it decodes one sentence."""
class SplitLinear(nn.Linear):
    """[`torch.nn.Linear`] with the same parameters and products."""

    # The installed package sets this to `linear_in_parts`. Code in a checkpoint has none.
    in_parts: ClassVar[Callable[[nn.Linear, Tensor], Tensor | None] | None] = None

    def forward(self, features: Tensor) -> Tensor:
        product = None if SplitLinear.in_parts is None else SplitLinear.in_parts(self, features)
        return super().forward(features) if product is None else product


# modeling/capsules/linear_maps.py
"""The linear maps of the routing modules, and their initial weights.

Legend: `…` batch and positions, `I` input capsules.
"""
class CapsuleModule(nn.Module):
    """A module that initialises its own parameters. `_init_weights` of our models calls it."""

    def init_capsule_weights(self, std: float) -> None:
        """Fill the parameters by `transformers.initialization`, whose functions do not change loaded weights."""
        raise NotImplementedError(f"{type(self).__name__} must define init_capsule_weights, to fill its parameters")


class ConstantLinear(CapsuleModule, nn.Linear):
    """A linear map that starts with weights 0: all outputs are `start`."""

    def __init__(self, in_features: int, out_features: int, start: float = 0.0) -> None:
        super().__init__(in_features, out_features)
        self.start = start

    def init_capsule_weights(self, std: float) -> None:
        init.zeros_(self.weight)
        init.constant_(self.bias, self.start)


class ScaledLinear(CapsuleModule, nn.Linear):
    """A linear map without bias that starts with weights of size `start_std`, independent of `init_std`."""

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
    """One linear map for each of I inputs, as a single batched product: `[…, I, in]` to `[…, I, out]`."""

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


# modeling/capsules/source_capsules.py
"""The aggregation layers of CapsNMT: a sentence of any length becomes a few vectors.

Legend: `B` batch, `S` source positions, `d` width of the states, `M` capsules, `R` sets of routing weights.
"""
SITE = "encoder.capsules"


def sinusoids(places: Tensor, width: int) -> Tensor:
    """The positional encoding of Vaswani et al. (2017) for `places` `[…]`: `[…, d]`, sines and cosines alternate."""
    rates = torch.exp(torch.arange(0, width, 2, device=places.device) * (-torch.log(torch.tensor(10000.0)) / width))
    angles = places.unsqueeze(-1).to(rates.dtype) * rates.to(places.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def word_places(states: Tensor, mask: Tensor | None) -> Tensor:
    """The place of every word in its sentence, `[B, S]` or `[1, S]`, without counting padding."""
    if mask is None:
        return torch.arange(states.shape[1], device=states.device).unsqueeze(0)
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


class PooledSource(nn.Module):
    """Simple aggregation: `C = [h^max, h^avg, h_1, h_L]`, Eq. (2)-(4), CapsNMT."""

    count = 4

    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """`states` `[B, S, d]`, `mask` `[B, S]` true for real words; returns C `[B, 4, d]`."""
        if mask is None:
            return torch.stack([states.amax(dim=1), states.mean(dim=1), states[:, 0], states[:, -1]], dim=1)
        keep = mask.unsqueeze(-1)
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        highest = states.masked_fill(~keep, torch.finfo(states.dtype).min).amax(dim=1)
        highest = highest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)
        mean = (
            states.masked_fill(~keep, 0.0).sum(dim=1, dtype=torch.promote_types(states.dtype, torch.float32)) / count
        )
        place = mask.cumsum(dim=1)
        first = (mask & (place == 1)).to(torch.uint8).argmax(dim=1)
        last = (mask & (place == count)).to(torch.uint8).argmax(dim=1)
        ends = states.gather(1, torch.stack([first, last], dim=1).unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        return torch.cat([highest.unsqueeze(1), mean.to(states.dtype).unsqueeze(1), ends], dim=1)


class SourceCapsules(CapsuleModule):
    """The capsule layer: routes the states of the words to M capsules, section 3, CapsNMT."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.d_model
        self.count, self.width, self.iterations = config.num_capsules, width, config.routing_iterations
        self.positions = config.position_aware_routing
        self.sets = 1 if config.share_routing_weights else config.routing_iterations
        # With the ReLU after it, this size keeps outputs as large as inputs.
        self.votes = ScaledLinear(width, self.sets * self.count * width, (2.0 / width) ** 0.5)
        # g. Its maps are no modules, because routing applies them to the capsules of every iteration.
        self.scoring_weight = self.scoring_bias = None
        if config.separable_scoring and config.routing_iterations > 1:
            self.scoring_weight = nn.Parameter(torch.empty(2, width, width))  # W_1 and W_2
            self.scoring_bias = nn.Parameter(torch.empty(2, width))

    def init_capsule_weights(self, std: float) -> None:
        if self.scoring_weight is not None and self.scoring_bias is not None:
            init.normal_(self.scoring_weight, std=self.width**-0.5)
            init.zeros_(self.scoring_bias)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """`states` `[B, S, d]`, `mask` `[B, S]` true for real words; returns the capsules `[B, M, d]`."""
        capsule_positions = None
        if self.positions:
            states = states + sinusoids(word_places(states, mask), self.width).to(states.dtype)
            places = torch.arange(self.count, device=states.device)
            capsule_positions = sinusoids(places, self.width) / (self.width / 2) ** 0.5
        messages = torch.relu(self.votes(states)).unflatten(-1, (self.sets, self.count, self.width))
        options: dict[str, Any] = {"iterations": self.iterations, "mask": mask, "capsule_positions": capsule_positions}
        if self.scoring_weight is not None and self.scoring_bias is not None:
            (first, second), (first_bias, second_bias) = self.scoring_weight, self.scoring_bias
            hidden = torch.relu(nn.functional.linear(states, first, first_bias))
            options["input_scores"] = nn.functional.linear(hidden, second, second_bias)
            options["score_network"] = (first, first_bias, second, second_bias)
        votes = messages.permute(2, 0, 1, 3, 4)  # [R, B, S, M, d]
        record = open_record()
        result: Any = sequence_routing(votes, return_assignments=record is not None, **options)
        if record is None:
            return result
        capsules, assignments = result
        record.assignments[SITE] = assignments.unsqueeze(2)  # [iterations, B, 1, S, M]
        return capsules


class SourceContext(nn.Module):
    """The capsules C of a sentence and `W_c [c_1 … c_M]`, Eq. (5), which the decoder adds to every word."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        routed = config.source_aggregation == "capsules"
        self.aggregation = SourceCapsules(config) if routed else PooledSource(config)
        # A capsule has length 1 at most, the state of a word about sqrt(d).
        start = self.aggregation.count**-0.5 if routed else None
        self.projection = ScaledLinear(self.aggregation.count * config.d_model, config.d_model, start)

    def forward(self, states: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """`states` `[B, S, d]`; returns C `[B, M, d]` and `W_c C` `[B, d]`."""
        capsules = self.aggregation(states, mask)
        return capsules, self.projection(capsules.flatten(1))
