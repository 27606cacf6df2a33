"""CapsNMT's routing from a sentence to a fixed number of capsules: the public function."""

import torch
from torch import Tensor

from hf_capsule_mt.ops.arguments import check_shape, check_votes
from hf_capsule_mt.ops.positions import RoutingResult
from hf_capsule_mt.ops.precision import no_autocast, to_precise, working_votes
from hf_capsule_mt.ops.sequence.reference import reference_sequence_routing


def sequence_routing(
    votes: Tensor,
    iterations: int = 3,
    mask: Tensor | None = None,
    input_scores: Tensor | None = None,
    score_network: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    capsule_positions: Tensor | None = None,
    return_assignments: bool = False,
) -> RoutingResult:
    """Route a sentence of any length to O capsules: Eq. (7)-(12), (14) and Algorithm 1, CapsNMT.

    Args:
        votes: `[R, B, I, O, D]`, `f(h_i, theta_j)` of every word for every capsule. R is 1 if all iterations share the
            votes, or `iterations` if each has its own weights.
        iterations: rounds of routing; the first has uniform assignments.
        mask: `[B, I]`, true for a real word. A masked one weighs exactly 0 in every capsule.
        input_scores: `[B, I, E]`, g of the words. With it agreement is Eq. (14), without it Eq. (12).
        score_network: g for the capsules, `(W_1 [H, D], b_1 [H], W_2 [E, H], b_2 [E])`. Needs `input_scores`.
        capsule_positions: `[O, D]`, added to the capsules before they are compared with the words. The returned
            capsules do not contain them: a constant there is redundant with the bias of the linear map that follows.
        return_assignments: also return `[iterations, B, I, O]`.

    Returns:
        capsules `[B, O, D]`, or (capsules, assignments).
    """
    if votes.dim() != 5:
        raise ValueError(
            f"votes has shape {list(votes.shape)}: must be [iterations or 1, batch, inputs, outputs, size]"
        )
    mask = check_votes(votes[0], iterations, mask)
    if len(votes) not in (1, iterations):
        raise ValueError(
            f"votes has shape {list(votes.shape)}: must hold 1 set of votes or one for each of {iterations} iterations"
        )
    if (input_scores is None) != (score_network is None):
        raise ValueError("input_scores and score_network must be passed together, or neither")
    _, batch, inputs, outputs, size = votes.shape
    if capsule_positions is not None:
        check_shape("capsule_positions", capsule_positions, (outputs, size))
        capsule_positions = to_precise(capsule_positions)
    if input_scores is not None and score_network is not None:
        hidden, width = score_network[0].shape[0], score_network[2].shape[0]
        check_shape("input_scores", input_scores, (batch, inputs, width))
        for name, weight, shape in zip(
            ("W_1", "b_1", "W_2", "b_2"),
            score_network,
            ((hidden, size), (hidden,), (width, hidden), (width,)),
            strict=True,
        ):
            check_shape(f"{name} of score_network", weight, shape)
        input_scores = working_votes(input_scores, mask)
        first, first_bias, second, second_bias = map(to_precise, score_network)
        score_network = (first, first_bias, second, second_bias)
    with no_autocast(votes):
        capsules, trace = reference_sequence_routing(
            working_votes(votes, None if mask is None else mask.expand(len(votes), *mask.shape)),
            input_scores,
            score_network,
            capsule_positions,
            mask,
            iterations,
        )
    capsules = capsules.to(votes.dtype)
    return (capsules, torch.stack(trace)) if return_assignments else capsules
