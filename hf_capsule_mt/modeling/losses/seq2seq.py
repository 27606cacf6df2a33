"""The translation loss: cross-entropy over real target tokens."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hf_capsule_mt.modeling.losses.vocabulary import cross_entropy_of_states, row_blocks

# Logits that are worked on at a time: their exponentials stay in the cache of a CPU.
CPU_BLOCK_LOGITS = 2**18


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum over rows of `logsumexp(logits) - logits[label]`, 0 where the label is -100.

    Keeps the logits and one number a row; PyTorch's own keeps the log probabilities, as large as the logits, too.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor) -> Tensor:
        keep = labels != -100
        wanted = labels.masked_fill(~keep, 0).unsqueeze(-1)
        total = logits.new_zeros((), dtype=torch.float32 if logits.dtype != torch.float64 else torch.float64)
        norms = total.new_empty(len(logits))
        for rows in row_blocks(logits, logits.shape[-1], CPU_BLOCK_LOGITS):
            norms[rows] = logits[rows].to(total.dtype).logsumexp(dim=-1)
            losses = norms[rows] - logits[rows].gather(-1, wanted[rows]).squeeze(-1)
            total += losses.masked_fill(~keep[rows], 0.0).sum()
        ctx.save_for_backward(logits, norms, wanted, keep)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor, None]:
        logits, norms, wanted, keep = ctx.saved_tensors
        grad = torch.empty_like(logits)
        scale = (keep * grad_total).unsqueeze(-1)  # [rows, 1], 0 for padding
        minus = torch.full((1, 1), -1.0, dtype=norms.dtype, device=norms.device)
        for rows in row_blocks(logits, logits.shape[-1], CPU_BLOCK_LOGITS):
            # Written where they belong when the type allows; otherwise rounded once, at the end.
            place = grad[rows] if grad.dtype == norms.dtype else None
            shares = torch.sub(logits[rows], norms[rows].unsqueeze(-1), out=place).exp_()
            shares.scatter_add_(-1, wanted[rows], minus.expand(len(shares), 1)).mul_(scale[rows])
            if place is None:
                grad[rows] = shares
        return grad, None


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of `logits` `[N, V]` and `labels` `[N]` (-100: none), summed, in float32 or better."""
    if torch.compiler.is_compiling():
        precise = logits if logits.dtype == torch.float64 else logits.float()
        return nn.functional.cross_entropy(precise, labels, ignore_index=-100, reduction="sum")
    return _SummedCrossEntropy.apply(logits, labels)


class TranslationLoss(NamedTuple):
    """`smooth` is what is learnt from; `plain` the same without label smoothing, to be reported."""

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
    rows, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if smoothing:
        precise = rows if rows.dtype == torch.float64 else rows.float()
        total = nn.functional.cross_entropy(precise, wanted, reduction="sum", label_smoothing=smoothing)
    else:
        total = summed_cross_entropy(rows, wanted)
    return total / _tokens(labels, num_items_in_batch)


def loss_of_states(
    states: Tensor,
    embedding: Tensor,
    bias: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    smoothing: float = 0.0,
) -> TranslationLoss:
    """`translation_loss` of the logits `states E^T + bias` without these in memory; `states` `[B, T, d]`, `embedding`
    `[V, d]`, `bias` `[1, V]`."""
    labels = labels.to(states.device)
    sums = cross_entropy_of_states(states.flatten(0, 1), embedding, labels.flatten(), bias.flatten(), smoothing)
    count = _tokens(labels, num_items_in_batch)
    smooth, plain = (total / count for total in sums)
    return TranslationLoss(smooth, plain if smoothing else smooth)


def _tokens(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    if num_items_in_batch is None:
        return labels.ne(-100).sum().clamp(min=1)
    return torch.as_tensor(num_items_in_batch, device=labels.device).clamp(min=1)
