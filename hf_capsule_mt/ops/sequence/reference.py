"""CapsNMT's routing from a sentence to a fixed number of capsules, as the paper prints it."""

import torch
from torch import Tensor

from hf_capsule_mt.ops.equations import Assignments, output_assignments, squash, sum_size, weighted_votes


def capsule_scores(capsules: Tensor, network: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """g of Eq. (14), CapsNMT: linear map `W_1, b_1`, ReLU, linear map `W_2, b_2`; `[…, D]` to `[…, E]`."""
    first, first_bias, second, second_bias = network
    hidden = torch.relu(capsules @ first.transpose(0, 1) + first_bias)
    return hidden @ second.transpose(0, 1) + second_bias


def reference_sequence_routing(
    votes: Tensor,
    input_scores: Tensor | None,
    network: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    capsule_positions: Tensor | None,
    mask: Tensor | None,
    iterations: int,
) -> tuple[Tensor, Assignments]:
    """Algorithm 1, CapsNMT. Votes `[R, B, I, O, D]`, one set for each iteration or one for all, to `[B, O, D]`.

    Agreement is Eq. (12) with the votes of the iteration. With `network` it is Eq. (14), where `input_scores`
    `[B, I, E]` are g of the inputs. `capsule_positions` `[O, D]` are added to the capsules before the comparison. The
    logits are updated `iterations - 1` times, as in the other references.
    """
    logits = votes.new_zeros(votes.shape[1:-1])
    trace: Assignments = []
    for iteration in range(1, iterations + 1):
        messages = votes[min(iteration, len(votes)) - 1]  # f(h_i, theta_j^t), [B, I, O, D]
        trace.append(output_assignments(logits, mask))
        capsules = squash(weighted_votes(trace[-1], messages))  # Eq. (7), (9), (10)
        if iteration < iterations:
            compared = capsules if capsule_positions is None else capsules + capsule_positions
            if network is None or input_scores is None:
                logits = logits + sum_size(messages * compared.unsqueeze(-3))
            else:
                logits = logits + input_scores @ capsule_scores(compared, network).transpose(-1, -2)
    return capsules, trace
