"""Routing computes in float32 (float64 for float64 input), also under autocast. Padding is set to 0."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

# Squares of larger votes overflow float32 in the density. Votes of trained networks are far smaller.
VOTE_LIMIT = 1e12

# Computed once: torch.compile of older releases cannot trace `is_autocast_available`.
AUTOCAST_DEVICES = frozenset(
    name for name in ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia") if torch.amp.is_autocast_available(name)
)


def half_gradient(grad: Tensor) -> Tensor:
    """A float32 gradient as float16. A finite value that is too large becomes float16's largest value.

    An infinite gradient stays infinite, so that a loss scaler still sees an overflow from elsewhere.
    """
    limit = torch.finfo(torch.float16).max
    return torch.where(grad.isfinite(), grad.clamp(-limit, limit), grad).to(torch.float16)


class _FromFloat16(torch.autograd.Function):
    """float16 to float32; the gradient goes back through [`half_gradient`]."""

    @staticmethod
    def forward(ctx, half: Tensor) -> Tensor:
        return half.float()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return half_gradient(grad)


def to_precise(tensor: Tensor) -> Tensor:
    """The tensor in working precision, float32 or float64."""
    if tensor.dtype == torch.float16:
        return _FromFloat16.apply(tensor)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def working_votes(votes: Tensor, mask: Tensor | None) -> Tensor:
    """Votes in working precision, padding set to 0, clamped so that squares are finite (float16 needs no clamp)."""
    precise = without_padding(to_precise(votes), mask)
    return precise if votes.dtype == torch.float16 else precise.clamp(-VOTE_LIMIT, VOTE_LIMIT)


def without_padding(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """The tensor with 0 where `mask` is false. Multiplying by 0 would not do: 0 times inf or nan is nan."""
    if mask is None:
        return tensor
    padding = ~mask.reshape(*mask.shape, *[1] * (tensor.dim() - mask.dim()))
    return tensor.masked_fill(padding, 0.0)


def no_autocast(tensor: Tensor | None) -> Any:
    device_type = "cpu" if tensor is None else tensor.device.type
    if device_type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
