"""The routing algorithms as the papers print them: the truth that every faster version is compared with.

Legend, used in every shape below: `…` any leading axes (batch, positions), `B` batch, `T` target steps,
`I` input capsules, `O` output capsules, `D` the size of an output capsule.

Nothing here casts, checks or dispatches: `hf_capsule_mt.ops.routing` does, and hands over float32 or float64.
"""

import math

import torch
from torch import Tensor

LOG_TWO_PI = math.log(2.0 * math.pi)

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


def dynamic_routing(
    votes: Tensor, mask: Tensor | None, iterations: int, normalize: bool, stop_assignment_gradient: bool
) -> tuple[Tensor, Assignments]:
    """Algorithm 1, DLA; with `normalize` Algorithm 1, HEADS. Votes `[…, I, O, D]` to capsules `[…, O, D]`.

    The logits are updated `iterations - 1` times: the update in the last round of the printed loop is never read.
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


def capsule_scores(capsules: Tensor, network: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """g of Eq. (14), CapsNMT: two linear maps, `W_1, b_1` and `W_2, b_2`, a ReLU between; `[…, D]` to `[…, E]`."""
    first, first_bias, second, second_bias = network
    hidden = torch.relu(capsules @ first.transpose(0, 1) + first_bias)
    return hidden @ second.transpose(0, 1) + second_bias


def sequence_routing(
    votes: Tensor,
    input_scores: Tensor | None,
    network: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    capsule_positions: Tensor | None,
    mask: Tensor | None,
    iterations: int,
) -> tuple[Tensor, Assignments]:
    """Algorithm 1, CapsNMT. Votes `[R, B, I, O, D]`, one set for each iteration or one for all, to `[B, O, D]`.

    Agreement is Eq. (12), with the votes of the iteration; with `network` it is Eq. (14), where `input_scores`
    `[B, I, E]` are g of the inputs. `capsule_positions` `[O, D]` belong to what is compared, see `sequence_routing`
    of `routing.py`. The logits are updated `iterations - 1` times, as everywhere.
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


def em_routing(
    votes: Tensor,
    log_activations: Tensor | None,
    beta_a: Tensor,
    beta_u: Tensor,
    mask: Tensor | None,
    iterations: int,
    inverse_temperature: float,
    variance_floor: float,
    stop_assignment_gradient: bool,
    keep_trace: bool,
) -> tuple[Tensor, Assignments]:
    """Algorithm 2, DLA (and HEADS, where `log_activations` is None). Votes `[…, I, O, D]` to `[…, O, D]`.

    `log_activations` `[…, I]` are log probabilities that an input capsule is present; `beta_a`, `beta_u` `[O]`.
    """
    # Uniform to begin with, [..., I, 1]: one value serves all outputs until the first E step.
    log_assignments = votes.new_full((*votes.shape[:-2], 1), -math.log(votes.shape[-2]))
    trace: Assignments = []
    for iteration in range(1, iterations + 1):
        if stop_assignment_gradient:
            log_assignments = log_assignments.detach()
        if keep_trace:
            assignments = log_assignments.exp().expand(votes.shape[:-1])
            trace.append(assignments if mask is None else assignments * mask.unsqueeze(-1))
        temperature = inverse_temperature * (1.0 - 0.95**iteration)
        means, variances, squares, log_presence = _m_step(
            votes, log_assignments, log_activations, beta_a, beta_u, mask, temperature, variance_floor
        )
        if iteration < iterations:
            log_assignments = _e_step(squares, variances, log_presence)
    return log_presence.exp().unsqueeze(-1) * means, trace


def _m_step(
    votes: Tensor,
    log_assignments: Tensor,
    log_activations: Tensor | None,
    beta_a: Tensor,
    beta_u: Tensor,
    mask: Tensor | None,
    temperature: float,
    variance_floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eq. (11)-(14), DLA: means and variances with their floor `[…, O, D]`, squared deviations of the votes
    `[…, I, O, D]`, log A^Omega `[…, O]`."""
    log_scores = log_assignments
    if log_activations is not None:
        log_scores = log_scores + log_activations.unsqueeze(-1)
    weights = input_weights(log_scores, mask)
    mass = log_scores.exp() if mask is None else log_scores.exp() * mask.unsqueeze(-1)
    total = mass.sum(dim=-2)
    means = weighted_votes(weights, votes)
    squares = (votes - means.unsqueeze(-3)).square()
    variances = weighted_votes(weights, squares) + variance_floor
    # Eq. (13): log(sigma) + (1 + log 2 pi) / 2 = (log(sigma^2) + 1 + log 2 pi) / 2, summed over the D dimensions.
    cost = 0.5 * sum_size(variances.log() + (1.0 + LOG_TWO_PI)) * total
    log_presence = torch.nn.functional.logsigmoid(temperature * (beta_a - beta_u * total - cost))
    return means, variances, squares, log_presence


def _e_step(squares: Tensor, variances: Tensor, log_presence: Tensor) -> Tensor:
    """Eq. (15)-(16), DLA, with the normal density's own constant: log assignments `[…, I, O]`."""
    precisions = (0.5 / variances).unsqueeze(-3)
    offsets = (log_presence - 0.5 * sum_size(variances.log() + LOG_TWO_PI)).unsqueeze(-2)
    if squares.shape[-1] == 1:
        log_densities = torch.addcmul(offsets, squares.squeeze(-1), precisions.squeeze(-1), value=-1.0)
    else:
        log_densities = offsets - (squares * precisions).sum(dim=-1)
    return log_densities.log_softmax(dim=-1)


def guided_scores(guide: Tensor, keys: Tensor, context: Tensor, score_weight: Tensor) -> Tensor:
    """Eq. (7), GDR, the score of one update: `w^T tanh(W_z z_t + W_v v_ij + W_o Omega_tj)`, `[B, T, I, O]`.

    `guide` `[B, T, D]`, `keys` `[B, I, O, D]`, `context` `[B, T, O, D]`, `score_weight` `[D]`.
    """
    hidden = guide[:, :, None, None, :] + keys[:, None] + context[:, :, None]
    return (hidden.tanh() * score_weight).sum(dim=-1)


def guided_routing(
    votes: Tensor,
    guide: Tensor,
    vote_keys: Tensor,
    output_weight: Tensor,
    score_weight: Tensor,
    mask: Tensor | None,
    iterations: int,
    scores=guided_scores,
) -> tuple[Tensor, Assignments]:
    """Algorithm 1, GDR. Votes `[B, I, O, D]` shared by all steps, guide `[B, T, D]`, to capsules `[B, T, O, D]`.

    `scores` computes Eq. (7); a version that keeps less memory can be passed in its place.
    """
    batch, inputs, outputs, _ = votes.shape
    steps = guide.shape[1]
    step_mask = None if mask is None else mask[:, None]
    logits = votes.new_zeros(batch, steps, inputs, outputs)
    trace: Assignments = []
    for iteration in range(1, iterations + 1):
        trace.append(output_assignments(logits, step_mask))
        # Eq. (4): one [T, I] x [I, D] product for each sentence and output, no [B, T, I, O, D].
        totals = torch.einsum("btio,biod->btod", trace[-1], votes)
        capsules = squash(totals)
        if iteration < iterations:
            logits = logits + scores(guide, vote_keys, capsules @ output_weight.mT, score_weight)
    return capsules, trace


def guided_pooling(
    votes: Tensor,
    guide: Tensor,
    keys: Tensor,
    score_weight: Tensor,
    counts: tuple[int, ...],
    over: str,
    mask: Tensor | None,
    scores=guided_scores,
) -> tuple[Tensor, Assignments]:
    """The comparisons of section 4.3, GDR: scores by Eq. (7) without capsules, and one sum of the votes.

    `votes` `[B, I, O, D]`, O = sum of `counts`: the capsules of the first group, then those of the second, …
    `keys` `[B, I, G, D]`, one a group, and groups beyond `counts` take part in the competition alone.
    `over="groups"` is CLF: a source word is shared out among the groups. `over="inputs"` is ATTN: every group shares
    itself out over the source words. Capsules are squashed as in Eq. (4).
    """
    logits = scores(guide, keys, guide.new_zeros(*guide.shape[:2], *keys.shape[2:]), score_weight)
    step_mask = None if mask is None else mask[:, None]
    shares = (output_assignments if over == "groups" else input_weights)(logits, step_mask)
    sums = []
    first = 0
    for group, count in enumerate(counts):
        sums.append(torch.einsum("bti,biod->btod", shares[..., group], votes[:, :, first : first + count]))
        first += count
    return squash(torch.cat(sums, dim=2)), [shares]
