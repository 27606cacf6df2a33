"""Cross-entropy that keeps only the logits and one number a row for backward, and no log probabilities."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_capsule_mt.modeling.losses.vocabulary import row_blocks

# Logits in one block: their exponentials fit into the cache of a CPU.
CPU_BLOCK_LOGITS = 2**18


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum over rows of `logsumexp(logits) - logits[label]`; a row with label -100 counts 0."""

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor) -> Tensor:
        keep = labels != -100
        targets = labels.masked_fill(~keep, 0).unsqueeze(-1)
        total = logits.new_zeros((), dtype=torch.float32 if logits.dtype != torch.float64 else torch.float64)
        norms = total.new_empty(len(logits))
        for rows in row_blocks(logits, logits.shape[-1], CPU_BLOCK_LOGITS):
            norms[rows] = logits[rows].to(total.dtype).logsumexp(dim=-1)
            losses = norms[rows] - logits[rows].gather(-1, targets[rows]).squeeze(-1)
            total += losses.masked_fill(~keep[rows], 0.0).sum()
        ctx.save_for_backward(logits, norms, targets, keep)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor, None]:
        logits, norms, targets, keep = ctx.saved_tensors
        grad = torch.empty_like(logits)
        scale = (keep * grad_total).unsqueeze(-1)  # [rows, 1], 0 for padding
        minus = torch.full((1, 1), -1.0, dtype=norms.dtype, device=norms.device)
        for rows in row_blocks(logits, logits.shape[-1], CPU_BLOCK_LOGITS):
            # Computed inside `grad` if the types agree; otherwise copied, which rounds once.
            place = grad[rows] if grad.dtype == norms.dtype else None
            block = torch.sub(logits[rows], norms[rows].unsqueeze(-1), out=place).exp_()  # probabilities
            block.scatter_add_(-1, targets[rows], minus.expand(len(block), 1)).mul_(scale[rows])
            if place is None:
                grad[rows] = block
        return grad, None


def summed_cross_entropy_in_blocks(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy of `logits` `[N, V]` and `labels` `[N]` (-100: padding), in float32 or better."""
    return _SummedCrossEntropy.apply(logits, labels)
