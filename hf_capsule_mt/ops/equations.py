"""The equations that the routing algorithms share, as the papers print them.

Legend for all shapes in the references: `…` any leading axes (batch, positions), `B` batch, `T` target steps,
`I` input capsules, `O` output capsules, `D` the size of an output capsule.

The functions here and in the files `reference.py` only compute. The files `routing.py` check the arguments, choose the
implementation, and convert to float32 or float64.
"""

import torch
from torch import Tensor

Assignments = list[Tensor]
"""One tensor `[…, I, O]` for each iteration: the assignments that this iteration's capsules are computed from."""


def squash(vectors: Tensor) -> Tensor:
    """Eq. (5), DLA; Eq. (8), HEADS; Eq. (4), GDR: shrink `[…, D]` to a length below one and keep the direction.

    Written as `s * |s| / (1 + |s|^2)`. At `s = 0`, where `s / |s|` is not defined, value and gradient are 0.
    """
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * (norm / (1.0 + norm * norm))


def input_weights(log_scores: Tensor, mask: Tensor | None) -> Tensor:
    """Shares of the inputs in each output: log scores `[…, I, O]` to weights that sum to 1 over I.

    Computes the quotient `C / sum_i C` of Eq. (7), HEADS and Eq. (11), DLA as a softmax over the inputs. So an output
    is the mean of its votes even if all its assignments are small. Masked inputs (`mask` `[…, I]`) weigh exactly 0.
    """
    if mask is None:
        return log_scores.softmax(dim=-2)
    keep = mask.unsqueeze(-1)
    lowest = torch.finfo(log_scores.dtype).min / 4
    return log_scores.masked_fill(~keep, lowest).softmax(dim=-2) * keep


def sum_size(tensor: Tensor) -> Tensor:
    """Sum over the last axis, the size D of a capsule. D = 1, the papers' choice, needs no pass over the data."""
    return tensor.squeeze(-1) if tensor.shape[-1] == 1 else tensor.sum(dim=-1)


def weighted_votes(weights: Tensor, votes: Tensor) -> Tensor:
    """Eq. (6), DLA: sum over inputs, weights `[…, I, O]` and votes `[…, I, O, D]` to `[…, O, D]`."""
    return (weights.unsqueeze(-1) * votes).sum(dim=-3)


def output_assignments(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Eq. (9), DLA; Eq. (6), GDR: softmax over the outputs, `[…, I, O]`. A masked input gets the assignments 0."""
    assignments = logits.softmax(dim=-1)
    return assignments if mask is None else assignments * mask.unsqueeze(-1)
