"""Attention for training on a CPU in bfloat16, by matrix products.

There the backward pass of PyTorch's `scaled_dot_product_attention` takes several times as long as the products that it
consists of; `scripts/benchmarks/attention_backward.py` shows it. Everything else goes to Transformers' `sdpa`, the
default: other devices and types, inference, and sentences longer than were measured.

`CapsuleSeq2SeqTrainer` chooses it for its training steps. In another training loop a user names it. Checkpoints do not
carry this file, and their configuration does not name it.

Legend: `B` batch, `H` heads, `T` queries, `S` keys, `D` size of a head.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_matmul_on_cpu"
DEFAULT = "sdpa"  # what Transformers chooses, and what `NAME` is elsewhere
LONGEST = 512  # positions; products were faster from 8 to this length, longer ones were not measured
# Arguments that change the scores. `sdpa` knows how, or refuses them. `cache` is one of them before 5.24.
NOT_HANDLED = ("position_bias", "softcap", "cache")


def attention_on_cpu(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """As Transformers' `sdpa`, and by matrix products where these are faster.

    Args:
        query: `[B, H, T, D]`.
        key, value: `[B, H, S, D]`.
        attention_mask: boolean, True for what is read, or a number to add; anything that broadcasts to `[B, H, T, S]`.

    Returns:
        `[B, T, H, D]`, and None in place of the probabilities.
    """
    if uses_products(query, key, value, dropout) and all(kwargs.get(name) is None for name in NOT_HANDLED):
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        bias = _bias(query, key, attention_mask, causal)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        with torch.autocast("cpu", enabled=False):  # which would copy the scores to float32 and back
            output = _attention(query, key, value, bias, scale, dropout)
        return output.transpose(1, 2).contiguous(), None
    options: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options, **kwargs)


def uses_products(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether these tensors are of a training step on a CPU in bfloat16, with a head of keys for each of queries.

    Dropout must act alike with and without gradients: reentrant gradient checkpointing runs a layer without them
    first and then again with them, and both must draw the same numbers.
    """
    needs_gradient = query.requires_grad or key.requires_grad or value.requires_grad
    return (
        query.device.type == "cpu"
        and query.dtype == key.dtype == value.dtype == torch.bfloat16
        and (dropout > 0.0 or (torch.is_grad_enabled() and needs_gradient))
        and query.shape[:2] == key.shape[:2]
        and max(query.shape[2], key.shape[2]) <= LONGEST
    )


def _bias(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """What is added to the scores: broadcasts to `[B, H, T, S]`; None for nothing."""
    if mask is None:
        if not is_causal or query.shape[2] == 1:
            return None
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    # The lowest number, not infinity: a query that reads nothing gets the mean of all values, and no NaN.
    lowest = torch.finfo(query.dtype).min
    if mask.dtype != torch.bool:
        return mask.clamp(min=lowest).to(query.dtype)
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, lowest)


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    """`softmax(query key^T * scale + bias) value`, `[B, H, T, D]`. Sums and the softmax are in float32 inside."""
    scores = torch.matmul(query, key.mT)  # [B, H, T, S]
    scores = scores * scale if bias is None else torch.add(bias, scores, alpha=scale)
    probabilities = torch.softmax(scores, dim=-1)
    if dropout > 0.0:
        probabilities = nn.functional.dropout(probabilities, dropout)
    return torch.matmul(probabilities, value)


def register_attention_on_cpu() -> None:
    """Make its name known to Transformers. `CapsuleSeq2SeqTrainer` chooses it; elsewhere a user names it."""
    AttentionInterface.register(NAME, attention_on_cpu)
    AttentionMaskInterface.register(NAME, sdpa_mask)
