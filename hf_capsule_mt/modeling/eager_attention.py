"""Attention that returns its weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel


@contextmanager
def eager_attention(model: nn.Module) -> Iterator[None]:
    """In this block attention is computed by the implementation that returns its weights."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    configs: dict[int, Any] = {id(part.config): part.config for part in parts}
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation_internal = "eager"
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
