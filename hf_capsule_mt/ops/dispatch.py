"""Which implementation routes, and why: the argument first, then the environment, then the device and the shape."""

import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

IMPLEMENTATIONS = ("reference", "blockwise", "native", "fused")
VARIABLE = "HF_CAPSULE_MT_ROUTING"

# Whether a GPU alone is reason enough for the kernels. To be switched on by whoever has compared them with the
# reference, and timed them, on one.
KERNELS_BY_DEFAULT = False

_warned: set[str] = set()


class FastImplementation(NamedTuple):
    """Compiled code or kernels.

    Args:
        obstacle: why votes of this type on this device cannot be routed; empty if they can.
        size_obstacle: why votes of this shape cannot be; Eq. (7), GDR takes any.
        device_obstacle: why this device never can, which is worth a warning.
        functions: by the name of the routing function.
    """

    obstacle: Callable[[Tensor], str]
    size_obstacle: Callable[[torch.Size], str]
    device_obstacle: Callable[[torch.device], str]
    functions: dict[str, Callable[..., Any]]


# Those at hand: `hf_capsule_mt.ops` adds "native" and "fused". Code that comes with a model has none.
FAST: dict[str, FastImplementation] = {}


class RoutingChoice(NamedTuple):
    """`implementation` is `"reference"`, `"blockwise"`, `"native"` or `"fused"`."""

    implementation: str
    reason: str


def explain_routing_choice(
    votes: Tensor, implementation: str | None = None, return_assignments: bool = False
) -> RoutingChoice:
    """What `dynamic_routing` and `em_routing` would run for these arguments, and why.

    Args:
        votes: `[…, I, O, D]`.
        implementation: `"reference"`, plain autograd; `"blockwise"`, a block of positions at a time with little
            memory; `"native"`, compiled code for the CPU; `"fused"`, Triton kernels; None lets the environment
            variable `HF_CAPSULE_MT_ROUTING` say one of these, or else decides by device and shape. What the argument
            names and cannot be had is an error; what the variable names and cannot be had is passed over with a
            warning.
        return_assignments: whether assignments are wanted too.
    """
    return choose_routing(votes, implementation, return_assignments, torch.is_grad_enabled() and votes.requires_grad)


def choose_routing(
    votes: Tensor, implementation: str | None, return_assignments: bool, differentiable: bool
) -> RoutingChoice:
    """As [`explain_routing_choice`]; `differentiable` says whether any argument needs a gradient."""

    def obstacle(name: str) -> str:
        if name in ("blockwise", "native") and return_assignments:
            return "assignments come from the reference or the fused kernels"
        found = _obstacle(name, votes)
        if found or name not in FAST:
            return found
        if name == "fused" and return_assignments and differentiable:
            return "the kernels have no gradient through the assignments (torch.no_grad() asks for none)"
        return FAST[name].size_obstacle(votes.shape)

    return _choose(votes, implementation, obstacle)


def choose_guided_scores(votes: Tensor, implementation: str | None) -> RoutingChoice:
    """The same for the scores of guided routing and pooling, which know no assignments and any size."""
    return _choose(votes, implementation, lambda name: _obstacle(name, votes))


def _choose(votes: Tensor, implementation: str | None, obstacle: Callable[[str], str]) -> RoutingChoice:
    """`obstacle` says why an implementation cannot do the work; empty if it can."""
    if implementation is not None:
        _check_name("implementation", implementation)
        if found := obstacle(implementation):
            raise ValueError(f'implementation="{implementation}": {found}; leave it None to have the best that can')
        return RoutingChoice(implementation, "the argument says so")
    wanted = _environment()
    if wanted:
        found = obstacle(wanted)
        if not found:
            return RoutingChoice(wanted, "the environment variable HF_CAPSULE_MT_ROUTING says so")
        _warn_once(f"HF_CAPSULE_MT_ROUTING={wanted} is passed over: {found}")
    if votes.is_cuda and not KERNELS_BY_DEFAULT:
        found = f"they have run in the interpreter only, no GPU was at hand; {VARIABLE}=fused asks for them"
    elif votes.is_cuda:
        found = obstacle("fused")
        if not found:
            return RoutingChoice("fused", "a GPU with kernels for this shape")
        if "fused" in FAST and (without := FAST["fused"].device_obstacle(votes.device)):
            _warn_once(f"routing runs without its fused kernels, many times slower: {without}")
    else:
        found = obstacle("native")
        if not found:
            return RoutingChoice("native", "compiled for the CPU")
        found = f"not on a GPU; no compiled code: {found}"
    return RoutingChoice("reference" if obstacle("blockwise") else "blockwise", f"no fused kernels: {found}")


def _obstacle(implementation: str, votes: Tensor) -> str:
    """What keeps an implementation from any votes of this type, on this device, now."""
    if implementation in ("blockwise", "native") and torch.compiler.is_compiling():
        return "a compiler takes the reference apart by itself"
    if implementation in ("reference", "blockwise"):
        return ""
    if implementation not in FAST:
        return "code that comes with a model routes in PyTorch alone"
    return FAST[implementation].obstacle(votes)


# A compiler calls these and keeps what they answer; it could not follow them.
@torch.compiler.assume_constant_result
def _environment() -> str:
    wanted = os.environ.get(VARIABLE, "")
    if wanted:
        _check_name(VARIABLE, wanted)
    return wanted


@torch.compiler.assume_constant_result
def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=2)


def _check_name(source: str, name: str) -> None:
    if name not in IMPLEMENTATIONS:
        raise ValueError(
            f"{source}={name!r}: must be one of {', '.join(IMPLEMENTATIONS)}, or nothing to choose by device"
        )
