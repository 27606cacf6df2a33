"""Cross-entropy of logits that keeps the logits and one number a row, instead of the log probabilities as well."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_capsule_mt.modeling.losses.vocabulary import row_blocks

# Logits that are worked on at a time: their exponentials stay in the cache of a CPU.
CPU_BLOCK_LOGITS = 2**18


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum over rows of `logsumexp(logits) - logits[label]`, 0 where the label is -100."""

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


def summed_cross_entropy_in_blocks(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of `logits` `[N, V]` and `labels` `[N]` (-100: none), summed, in float32 or better."""
    return _SummedCrossEntropy.apply(logits, labels)
