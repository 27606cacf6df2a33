"""Routing computes in float32 (float64 for float64 input), whatever autocast says; padding is kept out of it."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

# Squares of votes beyond this overflow float32 on their way through the density; no trained network comes near it.
VOTE_LIMIT = 1e12

# Asked once: compilers of older releases cannot trace the question.
AUTOCAST_KINDS = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia") if torch.amp.is_autocast_available(kind)
)


def half_gradient(grad: Tensor) -> Tensor:
    """A float32 gradient as float16: what is finite and too large becomes float16's largest value, not inf.

    A gradient that arrives infinite stays infinite, so that a loss scaler still sees an overflow made elsewhere.
    """
    limit = torch.finfo(torch.float16).max
    return torch.where(grad.isfinite(), grad.clamp(-limit, limit), grad).to(torch.float16)


class _FromFloat16(torch.autograd.Function):
    """float16 to float32, and the gradient back by [`half_gradient`]."""

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
    """Votes in working precision, padding 0, inside the range whose squares are finite (all of float16 is)."""
    precise = without_padding(to_precise(votes), mask)
    return precise if votes.dtype == torch.float16 else precise.clamp(-VOTE_LIMIT, VOTE_LIMIT)


def without_padding(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """0 where `mask` is false, so that even inf and nan in padding (0 times either is nan) reach nothing."""
    if mask is None:
        return tensor
    padding = ~mask.reshape(*mask.shape, *[1] * (tensor.dim() - mask.dim()))
    return tensor.masked_fill(padding, 0.0)


def no_autocast(tensor: Tensor | None) -> Any:
    kind = "cpu" if tensor is None else tensor.device.type
    if kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
