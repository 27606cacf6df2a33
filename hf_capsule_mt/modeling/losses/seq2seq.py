"""The translation loss: cross-entropy over real target tokens.

The losses that need little memory are in `blocks_of_logits.py` and `vocabulary.py`. They are added to `LEAN` when the
package is imported. Code in a checkpoint has none and uses PyTorch's own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# By the name of the function below that uses it.
LEAN: dict[str, Callable[..., Any]] = {}


def _lean(name: str) -> Callable[..., Any] | None:
    return None if torch.compiler.is_compiling() else LEAN.get(name)


def summed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of `logits` `[N, V]` and `labels` `[N]` (-100: none), summed, in float32 or better."""
    lean = _lean("summed_cross_entropy")
    if lean is not None and not smoothing:
        return lean(logits, labels)
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(precise, labels, reduction="sum", label_smoothing=smoothing)


def log_partition(hidden: Tensor, embedding: Tensor, weights: Tensor) -> Tensor:
    """`sum_n weights_n * log sum_v exp(hidden_n . E_v)`; `hidden` `[N, d]`, `embedding` `[V, d]`, `weights` `[N]`."""
    lean = _lean("log_partition")
    if lean is not None:
        return lean(hidden, embedding, weights)
    scores = (hidden @ embedding.mT.to(hidden.dtype)).to(weights.dtype)
    return (weights * scores.logsumexp(dim=-1)).sum()


class TranslationLoss(NamedTuple):
    """`smooth` is the training loss; `plain`, without label smoothing, is for reports."""

    smooth: Tensor
    plain: Tensor


def translation_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of `logits` `[B, T, V]` and `labels` `[B, T]`, -100 where there is no token.

    The mean over the tokens of this batch, or, where the Trainer gives the number of tokens of all the batches that
    it accumulates over, the sum divided by that number: then neither the loss nor its gradient depends on how the
    tokens were split. Labels that are all padding give 0, not NaN.
    """
    labels = labels.to(logits.device)
    total = summed_cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), smoothing)
    return total / _tokens(labels, num_items_in_batch)


def loss_of_states(
    states: Tensor,
    embedding: Tensor,
    bias: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    smoothing: float = 0.0,
) -> TranslationLoss:
    """`translation_loss` of the logits `states E^T + bias`: `[B, T, d]`, `[V, d]` and `[1, V]`.

    Never holds all the logits where `LEAN` has `loss_of_states`.
    """
    labels = labels.to(states.device)
    lean = _lean("loss_of_states")
    if lean is None:
        logits = nn.functional.linear(states, embedding) + bias
        plain = smooth = translation_loss(logits.detach() if smoothing else logits, labels, num_items_in_batch)
        if smoothing:
            smooth = translation_loss(logits, labels, num_items_in_batch, smoothing)
        return TranslationLoss(smooth, plain)
    sums = lean(states.flatten(0, 1), embedding, labels.flatten(), bias.flatten(), smoothing)
    count = _tokens(labels, num_items_in_batch)
    smooth, plain = (total / count for total in sums)
    return TranslationLoss(smooth, plain if smoothing else smooth)


def _tokens(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    if num_items_in_batch is None:
        return labels.ne(-100).sum().clamp(min=1)
    return torch.as_tensor(num_items_in_batch, device=labels.device).clamp(min=1)
