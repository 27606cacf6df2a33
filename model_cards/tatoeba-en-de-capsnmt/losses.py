# Copied from hf_capsule_mt 0.1.0 (modeling/losses/seq2seq.py), Apache-2.0, for trust_remote_code.
"""The translation loss: cross-entropy over real target tokens.

The losses that need little memory are in `blocks_of_logits.py` and `vocabulary.py`. Importing the package adds them to
`MEMORY_SAVING`. Code in a checkpoint has none, and uses PyTorch's losses.
"""

import torch
from collections.abc import Callable
from torch import Tensor, nn
from typing import Any, NamedTuple


# Keys: names of the functions below that call them.
MEMORY_SAVING: dict[str, Callable[..., Any]] = {}


def _memory_saving(name: str) -> Callable[..., Any] | None:
    """The function that saves memory; None without the package, and in compiled code."""
    return None if torch.compiler.is_compiling() else MEMORY_SAVING.get(name)


def summed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Summed cross-entropy of `logits` `[N, V]` and `labels` `[N]` (-100: padding), in float32 or better."""
    in_blocks = _memory_saving("summed_cross_entropy")
    if in_blocks is not None:
        return in_blocks(logits, labels, smoothing)
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(precise, labels, reduction="sum", label_smoothing=smoothing)


def log_partition(hidden: Tensor, embedding: Tensor, weights: Tensor) -> Tensor:
    """`sum_n weights_n * log sum_v exp(hidden_n . E_v)`; `hidden` `[N, d]`, `embedding` `[V, d]`, `weights` `[N]`."""
    in_blocks = _memory_saving("log_partition")
    if in_blocks is not None:
        return in_blocks(hidden, embedding, weights)
    scores = (hidden @ embedding.mT.to(hidden.dtype)).to(weights.dtype)
    return (weights * scores.logsumexp(dim=-1)).sum()


class TranslationLoss(NamedTuple):
    """`smooth` is the training loss. `plain` has no label smoothing and is reported."""

    smooth: Tensor
    plain: Tensor


def translation_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of `logits` `[B, T, V]` and `labels` `[B, T]`, -100 for padding."""
    labels = labels.to(logits.device)
    total = summed_cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), smoothing)
    return total / token_count(labels, num_items_in_batch)


def loss_of_states(
    states: Tensor,
    embedding: Tensor,
    bias: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    smoothing: float = 0.0,
) -> TranslationLoss:
    """`translation_loss` of the logits `states E^T + bias`: `[B, T, d]`, `[V, d]` and `[1, V]`."""
    labels = labels.to(states.device)
    in_blocks = _memory_saving("loss_of_states")
    if in_blocks is None:
        logits = nn.functional.linear(states, embedding) + bias
        plain = smooth = translation_loss(logits.detach() if smoothing else logits, labels, num_items_in_batch)
        if smoothing:
            smooth = translation_loss(logits, labels, num_items_in_batch, smoothing)
        return TranslationLoss(smooth, plain)
    sums = in_blocks(states.flatten(0, 1), embedding, labels.flatten(), bias.flatten(), smoothing)
    count = token_count(labels, num_items_in_batch)
    smooth, plain = (total / count for total in sums)
    return TranslationLoss(smooth, plain if smoothing else smooth)


def token_count(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """The tokens that a summed loss is divided by, at least 1: those of the step, or of `labels` if not counted."""
    if num_items_in_batch is None:
        return labels.ne(-100).sum().clamp(min=1)
    return torch.as_tensor(num_items_in_batch, device=labels.device).clamp(min=1)
