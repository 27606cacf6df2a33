"""Keeps Marian's positions as they are while a model trains."""

from torch import nn
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding


def freeze_positions(model: nn.Module) -> None:
    """Sinusoids are no weights, and no checkpoint keeps them. Transformers 5.24 trains those of a loaded Marian."""
    for module in model.modules():
        if isinstance(module, MarianSinusoidalPositionalEmbedding):
            module.weight.requires_grad_(False)
