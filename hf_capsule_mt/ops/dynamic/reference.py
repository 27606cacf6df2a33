"""Dynamic routing as the papers print it. Tests compare every faster version with it."""

from torch import Tensor

from hf_capsule_mt.ops.equations import (
    Assignments,
    input_weights,
    output_assignments,
    squash,
    sum_size,
    weighted_votes,
)


def reference_dynamic_routing(
    votes: Tensor, mask: Tensor | None, iterations: int, normalize: bool, stop_assignment_gradient: bool
) -> tuple[Tensor, Assignments]:
    """Algorithm 1, DLA; with `normalize` Algorithm 1, HEADS. Votes `[…, I, O, D]` to capsules `[…, O, D]`.

    The logits are updated `iterations - 1` times: in the printed loop nothing reads the last update.
    """
    logits = votes.new_zeros(votes.shape[:-1])
    trace: Assignments = []
    for iteration in range(1, iterations + 1):
        if stop_assignment_gradient:
            logits = logits.detach()
        trace.append(output_assignments(logits, mask))
        weights = input_weights(logits.log_softmax(dim=-1), mask) if normalize else trace[-1]
        capsules = squash(weighted_votes(weights, votes))
        if iteration < iterations:
            logits = logits + sum_size(votes * capsules.unsqueeze(-3))
    return capsules, trace
