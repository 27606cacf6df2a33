"""The equations that the routing algorithms share, as the papers print them.

Legend, used in every shape of the references: `…` any leading axes (batch, positions), `B` batch, `T` target steps,
`I` input capsules, `O` output capsules, `D` the size of an output capsule.

Nothing here and in the files `reference.py` casts, checks or chooses: the files `routing.py` do, and hand over float32
or float64.
"""

import torch
from torch import Tensor

Assignments = list[Tensor]
"""One tensor `[…, I, O]` for each iteration, as it was before that iteration's update of the capsules."""


def squash(vectors: Tensor) -> Tensor:
    """Eq. (5), DLA; Eq. (8), HEADS; Eq. (4), GDR: shrink `[…, D]` to a length below one, direction kept.

    Written as `s * |s| / (1 + |s|^2)`, which is 0 with gradient 0 at `s = 0` where `s / |s|` is not defined.
    """
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * (norm / (1.0 + norm * norm))


def input_weights(log_scores: Tensor, mask: Tensor | None) -> Tensor:
    """Shares of the inputs in each output: `[…, I, O]` log scores to weights that sum to 1 over I.

    The quotient `C / sum_i C` of Eq. (7), HEADS and Eq. (11), DLA as a softmax over the inputs, so that an output
    whose assignments are all small is still the mean of its votes. Masked inputs, `mask` `[…, I]`, weigh exactly 0.
    """
    if mask is None:
        return log_scores.softmax(dim=-2)
    keep = mask.unsqueeze(-1)
    lowest = torch.finfo(log_scores.dtype).min / 4
    return log_scores.masked_fill(~keep, lowest).softmax(dim=-2) * keep


def sum_size(tensor: Tensor) -> Tensor:
    """Sum over the last axis, the size D of a capsule; D = 1, the papers' choice, needs no pass over the data."""
    return tensor.squeeze(-1) if tensor.shape[-1] == 1 else tensor.sum(dim=-1)


def weighted_votes(weights: Tensor, votes: Tensor) -> Tensor:
    """Eq. (6), DLA: sum over inputs, weights `[…, I, O]` and votes `[…, I, O, D]` to `[…, O, D]`."""
    return (weights.unsqueeze(-1) * votes).sum(dim=-3)


def output_assignments(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Eq. (9), DLA; Eq. (6), GDR: softmax over the outputs, `[…, I, O]`; a masked input is assigned nowhere."""
    assignments = logits.softmax(dim=-1)
    return assignments if mask is None else assignments * mask.unsqueeze(-1)
