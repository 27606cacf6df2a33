"""Which implementation routes, and why: the argument first, then the environment, then the device and the shape."""

import importlib.util
import math
import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hf_capsule_mt.ops.routing_fused import LARGEST_TILE, tile_elements
from hf_capsule_mt.ops.routing_native import LARGEST_POSITION, native_obstacle

IMPLEMENTATIONS = ("reference", "blockwise", "native", "fused")
VARIABLE = "HF_CAPSULE_MT_ROUTING"

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None
FUSED_TYPES = (torch.float32, torch.bfloat16, torch.float16)

# Whether a GPU alone is reason enough. To be switched on by whoever has compared the kernels with the reference, and
# timed them, on one.
CHOSEN_BY_THEMSELVES = False

_warned: set[str] = set()


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
        if name == "native" and not found and math.prod(votes.shape[-3:]) > LARGEST_POSITION:
            return f"more than {LARGEST_POSITION} votes a position"
        if name != "fused" or found:
            return found
        if return_assignments and differentiable:
            return "the kernels have no gradient through the assignments (torch.no_grad() asks for none)"
        # Sizes are not quoted: a compiler may not know them.
        if tile_elements(*votes.shape[-3:]) > LARGEST_TILE:
            return f"more than {LARGEST_TILE} votes a position (each axis rounded up to a power of two)"
        return ""

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
    if votes.is_cuda and not CHOSEN_BY_THEMSELVES:
        found = f"they have run in the interpreter only, no GPU was at hand; {VARIABLE}=fused asks for them"
    elif votes.is_cuda:
        found = obstacle("fused")
        if not found:
            return RoutingChoice("fused", "a GPU with kernels for this shape")
        if without := _device_obstacle(votes.device):
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
    if implementation == "native":
        return native_obstacle(votes)
    if implementation != "fused":
        return ""
    if votes.dtype not in FUSED_TYPES:
        return f"the kernels compute in float32, and the votes have type {votes.dtype}"
    return _device_obstacle(votes.device)


# A compiler calls these and keeps what they answer; it could not follow them.
@torch.compiler.assume_constant_result
def _device_obstacle(device: torch.device) -> str:
    """Why the kernels do not run on this device; empty if they do."""
    if not TRITON_IS_INSTALLED:
        return "Triton is not installed (pip install triton)"
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
    if device.type == "cpu":
        return "" if interpreted else "on a CPU they run in Triton's interpreter alone, for tests (TRITON_INTERPRET=1)"
    if device.type != "cuda":
        return f"there are none for the device type {device.type}"
    if torch.version.hip is not None:
        return "there are none for AMD GPUs"
    if interpreted:
        return "TRITON_INTERPRET=1 asks for Triton's interpreter, which is for tests on a CPU"
    major, minor = torch.cuda.get_device_capability(device)
    return (
        ""
        if major >= 8
        else f"they need compute capability 8.0, {torch.cuda.get_device_name(device)} has {major}.{minor}"
    )


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
