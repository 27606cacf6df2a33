"""Eq. (7), GDR for one block of target steps at a time, with little memory in the forward and the backward pass."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from hf_capsule_mt.ops.blockwise import block_length


class _GuidedScores(torch.autograd.Function):
    """Eq. (7), GDR in blocks of target steps. It keeps no `[B, T, I, O, D]` tensor for the backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, guide: Tensor, keys: Tensor, context: Tensor, score_weight: Tensor) -> Tensor:
        ctx.save_for_backward(guide, keys, context, score_weight)
        batch, inputs, outputs, size = keys.shape
        scores = keys.new_empty(batch, guide.shape[1], inputs, outputs)
        for rows, steps in _guided_blocks(guide, keys):
            hidden = _hidden(guide[rows, steps], keys[rows], context[rows, steps])
            scores[rows, steps] = (hidden.reshape(-1, size) @ score_weight).view(hidden.shape[:-1])
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_scores: Tensor) -> tuple[Tensor, ...]:
        guide, keys, context, score_weight = ctx.saved_tensors
        size = len(score_weight)
        grad_context, grad_keys = torch.empty_like(context), torch.zeros_like(keys)
        grad_weight = torch.zeros_like(score_weight)
        for rows, steps in _guided_blocks(guide, keys):
            hidden = _hidden(guide[rows, steps], keys[rows], context[rows, steps])
            grad = grad_scores[rows, steps]
            grad_weight += grad.reshape(-1) @ hidden.reshape(-1, size)
            # d tanh = 1 - tanh^2, in place, because nothing reads `hidden` any more. The score weight is a common
            # factor; the sums are multiplied by it at the end.
            slopes = hidden.square_().neg_().add_(1.0).mul_(grad.unsqueeze(-1))
            torch.sum(slopes, dim=2, out=grad_context[rows, steps])
            grad_keys[rows] += slopes.sum(dim=1)
        grad_context *= score_weight
        grad_keys *= score_weight
        return grad_context.sum(dim=2), grad_keys, grad_context, grad_weight


def _hidden(guide: Tensor, keys: Tensor, context: Tensor) -> Tensor:
    """`tanh(guide + keys + context)`, `[B, T, I, O, D]` of one block."""
    return (keys[:, None] + (guide[:, :, None] + context)[:, :, None]).tanh_()


def _guided_blocks(guide: Tensor, keys: Tensor) -> list[tuple[slice, slice]]:
    """Pairs of slices of the batch and of the target axis. Each pair is one block."""
    batch, steps = guide.shape[:2]
    sentence = keys[0].numel() if batch else 1
    length = min(block_length(sentence, keys.device), max(steps, 1))
    rows = max(1, block_length(sentence * length, keys.device))
    return [
        (slice(row, row + rows), slice(start, start + length))
        for row in range(0, batch, rows)
        for start in range(0, steps, length)
    ]


def blockwise_guided_scores(guide: Tensor, keys: Tensor, context: Tensor, score_weight: Tensor) -> Tensor:
    """The reference's `guided_scores` with bounded memory in the forward and the backward pass."""
    return _GuidedScores.apply(guide, keys, context, score_weight)
