"""Replaces the attention of a model for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel


@contextmanager
def attention_implementation(model: nn.Module, name: str) -> Iterator[None]:
    """In this block the model uses the attention `name`. The one called `"eager"` returns its weights."""
    # The encoder and the decoder have configurations of their own.
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    configs: dict[int, Any] = {id(part.config): part.config for part in parts}
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation_internal = name
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
