"""Finds weights that are infinite or not a number, so that they are never saved."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def not_finite(tensors: Iterable[tuple[str, Any]]) -> str | None:
    """The name of the first tensor that contains an infinity or NaN."""
    for name, value in tensors:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta or not value.numel():
            continue
        if value.element_size() == 1:  # float8, which has no minimum and maximum in PyTorch
            value = value.float()
        # Both are NaN if any value is. Unlike `isfinite(value)`, this makes no second tensor.
        if not bool(torch.isfinite(torch.stack(value.aminmax())).all()):
            return name
    return None


def check_finite(tensors: Iterable[tuple[str, Any]], owner: str) -> None:
    """Raise a ValueError that names the first tensor of `owner` that is not finite."""
    name = not_finite(tensors)
    if name is not None:
        raise ValueError(
            f"{owner}: {name} has values that are not finite, so its training has diverged or its file is damaged; "
            "take an earlier checkpoint"
        )
