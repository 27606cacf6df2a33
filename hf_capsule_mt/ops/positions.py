"""Votes with any leading axes as a list of positions, routed by the reference at once or a block at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from hf_capsule_mt.ops.blockwise import blockwise
from hf_capsule_mt.ops.dispatch import choose_routing
from hf_capsule_mt.ops.precision import no_autocast

RoutingResult = Tensor | tuple[Tensor, Tensor]


def run_in_pytorch(
    route: Callable[..., tuple[Tensor, list[Tensor]]],
    positional: list[Tensor | None],
    shared: list[Tensor],
    implementation: str,
    return_assignments: bool,
) -> tuple[Tensor, list[Tensor]]:
    """The reference itself, or the reference block by block."""
    with no_autocast(positional[0]):
        if implementation == "blockwise":
            return blockwise(lambda *tensors: route(*tensors)[0], positional, shared), []
        capsules, trace = route(*positional, *shared)
        return capsules, trace if return_assignments else []


def chosen_implementation(
    votes: Tensor, tensors: list[Tensor | None], implementation: str | None, return_assignments: bool
) -> str:
    differentiable = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return choose_routing(votes, implementation, return_assignments, differentiable).implementation


def with_leading_axes(capsules: Tensor, trace: list[Tensor], lead: torch.Size, dtype: torch.dtype) -> RoutingResult:
    """Put the leading axes back: capsules `[…, O, D]`, assignments `[iterations, …, I, O]`."""
    capsules = capsules.reshape(*lead, *capsules.shape[1:]).to(dtype)
    if not trace:
        return capsules
    assignments = torch.stack(trace)
    return capsules, assignments.reshape(len(trace), *lead, *assignments.shape[2:])


def fused_answer(found: tuple[Tensor, Tensor], lead: torch.Size, return_assignments: bool) -> RoutingResult:
    capsules, assignments = found
    capsules = capsules.reshape(*lead, *capsules.shape[1:])
    if not return_assignments:
        return capsules
    return capsules, assignments.reshape(len(assignments), *lead, *assignments.shape[2:])


def by_position(tensor: Tensor | None, kept: int) -> Tensor | None:
    """All but the last `kept` axes as one: `[…, I, O, D]` to `[N, I, O, D]`, `[…, I]` to `[N, I]`."""
    return None if tensor is None else tensor.reshape(-1, *tensor.shape[tensor.dim() - kept :])


def votes_by_position(votes: Tensor) -> Tensor:
    return votes.reshape(-1, *votes.shape[-3:])
