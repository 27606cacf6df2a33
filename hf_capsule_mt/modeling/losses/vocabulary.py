"""Losses over a large vocabulary that never hold the scores of all positions in memory.

Legend: `N` positions, `d` width of the states and of the output embedding `[V, d]`, `V` vocabulary. The scores of
position n are `hidden_n E^T`, plus an optional bias.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_capsule_mt.ops.native_training import can_train_natively, native_row_losses

# Scores in one block.
CPU_BLOCK_ELEMENTS = 2**23
ACCELERATOR_BLOCK_ELEMENTS = 2**27


class _VocabularyLoss(torch.autograd.Function):
    """`sum_n weights_n * (logsumexp(scores_n) - target_n)`, a block of positions at a time.

    `target_n` is the score of the label, or 0 without `labels`. With smoothing it is `1 - smoothing` of this score and
    `smoothing` of the mean of all scores. Also returns the sum without smoothing, which has no gradient.

    The forward pass also computes the gradient, while it has a block of scores: no product with the vocabulary is
    computed twice. The backward pass scales the gradient.
    """

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        embedding: Tensor,
        weights: Tensor,
        labels: Tensor | None,
        bias: Tensor | None,
        smoothing: float,
        training: bool,
    ) -> tuple[Tensor, Tensor]:
        needs_hidden, needs_embedding = (need and training for need in ctx.needs_input_grad[:2])
        total, plain = weights.new_zeros(()), weights.new_zeros(())
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_embedding = torch.zeros_like(embedding, dtype=weights.dtype) if needs_embedding else None
        kept = embedding.to(hidden.dtype)
        needs_gradient = grad_hidden is not None or grad_embedding is not None
        # In float16 a gradient with small weights would be 0 before the loss is scaled: `backward` multiplies by them.
        ctx.unit = weights.amax().clamp_min(1e-30) if hidden.dtype == torch.float16 and len(weights) else None
        shares = weights if ctx.unit is None else weights / ctx.unit
        for rows in row_blocks(hidden, len(embedding), CPU_BLOCK_ELEMENTS):
            scores = hidden[rows] @ kept.mT
            label = None if labels is None else labels[rows]
            losses_of = _native_losses if can_train_natively(scores) else _losses
            norms, target, mean, grad_scores = losses_of(scores, label, bias, shares[rows], smoothing, needs_gradient)
            # Not as a dot product, which autocast would round.
            plain += (weights[rows] * (norms - target)).sum()
            if smoothing:
                target = torch.lerp(target, mean, smoothing)
            total += (weights[rows] * (norms - target)).sum()
            if grad_hidden is not None:
                torch.mm(grad_scores, kept, out=grad_hidden[rows])
            if grad_embedding is not None:
                if grad_embedding.dtype == grad_scores.dtype:
                    grad_embedding.addmm_(grad_scores.mT, hidden[rows])
                else:
                    grad_embedding += grad_scores.mT @ hidden[rows]
        ctx.save_for_backward(grad_hidden, grad_embedding)
        ctx.embedding_dtype = embedding.dtype
        ctx.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_embedding = ctx.saved_tensors
        if ctx.unit is not None:
            grad_total = grad_total * ctx.unit
        if grad_hidden is not None:
            grad_hidden = (grad_hidden * grad_total).to(grad_hidden.dtype)
        if grad_embedding is not None:
            grad_embedding = (grad_embedding * grad_total).to(ctx.embedding_dtype)
        return grad_hidden, grad_embedding, *[None] * 5


# The losses of a block of scores: log of the summed exponentials, scores of the labels, means of the scores, and the
# gradient of the loss. If the gradient is needed, it is computed in the memory of the scores.
BlockLosses = tuple[Tensor, Tensor, Tensor, Tensor]


def _losses(
    scores: Tensor, labels: Tensor | None, bias: Tensor | None, weights: Tensor, smoothing: float, needs_gradient: bool
) -> BlockLosses:
    dtype, words = scores.dtype, scores.shape[-1]
    scores = (scores if bias is None else scores.add_(bias)).to(weights.dtype)
    norms = scores.logsumexp(dim=-1)
    target = torch.zeros_like(norms) if labels is None else scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    mean = scores.mean(dim=-1) if smoothing else norms
    if needs_gradient:
        scores = scores.sub_(norms.unsqueeze(-1)).exp_()
        if labels is not None:
            if smoothing:
                scores -= smoothing / words
            scores.scatter_add_(-1, labels.unsqueeze(-1), scores.new_full((len(scores), 1), smoothing - 1.0))
        scores = scores.mul_(weights.unsqueeze(-1)).to(dtype)
    return norms, target, mean, scores


def _native_losses(
    scores: Tensor, labels: Tensor | None, bias: Tensor | None, weights: Tensor, smoothing: float, needs_gradient: bool
) -> BlockLosses:
    precise = None if bias is None else bias.float()
    return *native_row_losses(scores, labels, precise, weights if needs_gradient else None, smoothing), scores


def row_blocks(rows: Tensor, vocabulary: int, cpu_elements: int) -> list[slice]:
    """Slices of `rows` with at most `cpu_elements` scores each on a CPU, `vocabulary` scores a row."""
    limit = cpu_elements if rows.device.type == "cpu" else ACCELERATOR_BLOCK_ELEMENTS
    length = max(1, limit // vocabulary)
    return [slice(start, start + length) for start in range(0, len(rows), length)]


def _nonzero_rows(weights: Tensor) -> Tensor | None:
    """On a CPU: the rows with a weight, or None if all have one. On an accelerator, searching would wait: None."""
    rows = weights.nonzero().squeeze(-1) if weights.device.type == "cpu" else weights
    return rows if len(rows) < len(weights) else None


def log_partition_in_blocks(hidden: Tensor, embedding: Tensor, weights: Tensor) -> Tensor:
    """`sum_n weights_n * log sum_v exp(hidden_n . E_v)`; `hidden` `[N, d]`, `embedding` `[V, d]`, `weights` `[N]`."""
    if (rows := _nonzero_rows(weights)) is not None:
        hidden, weights = hidden.index_select(0, rows), weights.index_select(0, rows)
    return _VocabularyLoss.apply(hidden, embedding, weights, None, None, 0.0, torch.is_grad_enabled())[0]


def cross_entropy_of_states(
    hidden: Tensor, embedding: Tensor, labels: Tensor, bias: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of `hidden` `[N, d]` times E and `labels` `[N]` (-100: padding), in float32 or better.

    Returns it with label smoothing, and without smoothing and gradient. `embedding` `[V, d]`, `bias` `[V]`. As in
    PyTorch, label smoothing gives `smoothing` of the label's probability to all words. The bias gets no gradient.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64:
        hidden = hidden.to(torch.get_autocast_dtype(kind))  # autocast would do so in the product
    weights = labels.ne(-100).to(torch.float64 if hidden.dtype == torch.float64 else torch.float32)
    if (rows := _nonzero_rows(weights)) is not None:
        hidden, labels, weights = (tensor.index_select(0, rows) for tensor in (hidden, labels, weights))
    bias = None if bias is None else bias.to(hidden.dtype)
    arguments = weights, labels.clamp(min=0), bias, smoothing, torch.is_grad_enabled()
    return _VocabularyLoss.apply(hidden, embedding, *arguments)
