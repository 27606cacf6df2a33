"""Checks of the arguments of every routing function."""

import torch
from torch import Tensor


def check_votes(votes: Tensor, iterations: int, mask: Tensor | None) -> Tensor | None:
    """Check the arguments that all routing functions take. Returns the mask as booleans, one for each input."""
    if votes.dim() < 3:
        raise ValueError(f"votes has shape {list(votes.shape)}: must be […, inputs, outputs, size]")
    if not votes.is_floating_point():
        raise ValueError(f"votes has type {votes.dtype}: must be floating point")
    if 0 in votes.shape[-3:]:
        raise ValueError(f"votes has shape {list(votes.shape)}: inputs, outputs and size must each be at least 1")
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations={iterations!r}: must be an integer of at least 1")
    if mask is None:
        return None
    if mask.is_floating_point():
        raise ValueError(
            f"mask has type {mask.dtype}: must be boolean (or integer), true for a real input. An additive mask of 0 "
            "and -inf means the opposite"
        )
    try:
        return mask.bool().expand(votes.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"mask has shape {list(mask.shape)}: must have one value for each input, "
            f"the shape {list(votes.shape[:-2])}"
        ) from None


def check_guided(votes: Tensor, iterations: int, mask: Tensor | None, guide: Tensor, name: str) -> Tensor | None:
    """`check_votes` for functions whose target steps share the votes; also checks that the guide fits the votes."""
    if votes.dim() != 4:
        raise ValueError(f"votes has shape {list(votes.shape)}: {name} takes [batch, inputs, outputs, size]")
    mask = check_votes(votes, iterations, mask)
    batch, size = votes.shape[0], votes.shape[-1]
    if guide.dim() != 3 or guide.shape[0] != batch or guide.shape[-1] != size:
        raise ValueError(f"guide has shape {list(guide.shape)}: must be [{batch}, steps, {size}] to fit the votes")
    return mask


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {list(tensor.shape)}: must be {list(shape)} to fit the votes")
