"""Cross-entropy that keeps only the logits and one number a row for backward, and no log probabilities."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_capsule_mt.modeling.losses.vocabulary import row_blocks
from hf_capsule_mt.ops.native_training import can_train_natively, native_row_losses

# Logits in one block: their exponentials fit into the cache of a CPU.
CPU_BLOCK_LOGITS = 2**18


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum over rows of `logsumexp(logits) - target`; a row with label -100 counts 0.

    The target is the logit of the label; `smoothing` of it is the mean of all logits.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        keep = labels != -100
        targets = labels.masked_fill(~keep, 0)
        dtype = torch.float32 if logits.dtype != torch.float64 else torch.float64
        if can_train_natively(logits) and logits.is_contiguous():
            norms, scores, means = native_row_losses(logits.detach(), targets)
        else:
            norms, scores, means = logits.new_empty(3, len(logits), dtype=dtype)
            for rows in row_blocks(logits, logits.shape[-1], CPU_BLOCK_LOGITS):
                block = logits[rows].to(dtype)
                norms[rows], scores[rows] = block.logsumexp(dim=-1), block.gather(-1, targets[rows, None]).squeeze(-1)
                if smoothing:
                    means[rows] = block.mean(dim=-1)
        if smoothing:
            scores = torch.lerp(scores, means, smoothing)
        ctx.save_for_backward(logits, norms, targets, keep)
        ctx.smoothing = smoothing
        return (norms - scores).masked_fill(~keep, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor, None, None]:
        logits, norms, targets, keep = ctx.saved_tensors
        weights = keep * grad_total  # [rows], 0 for padding
        if can_train_natively(logits) and logits.is_contiguous():
            grad = logits.clone()
            native_row_losses(grad, targets, weights=weights.float(), smoothing=ctx.smoothing)
            return grad, None, None
        grad = torch.empty_like(logits)
        minus = torch.full((1, 1), ctx.smoothing - 1.0, dtype=norms.dtype, device=norms.device)
        for rows in row_blocks(logits, logits.shape[-1], CPU_BLOCK_LOGITS):
            # Computed inside `grad` if the types agree; otherwise copied, which rounds once.
            place = grad[rows] if grad.dtype == norms.dtype else None
            block = torch.sub(logits[rows], norms[rows].unsqueeze(-1), out=place).exp_()  # probabilities
            if ctx.smoothing:
                block -= ctx.smoothing / logits.shape[-1]
            block.scatter_add_(-1, targets[rows, None], minus.expand(len(block), 1)).mul_(weights[rows, None])
            if place is None:
                grad[rows] = block
        return grad, None, None


def summed_cross_entropy_in_blocks(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Summed cross-entropy of `logits` `[N, V]` and `labels` `[N]` (-100: padding), in float32 or better.

    As in PyTorch, label smoothing gives `smoothing` of the label's probability to all words.
    """
    return _SummedCrossEntropy.apply(logits, labels, smoothing)
