"""The public routing functions: check the arguments, choose the precision, pick the implementation.

Legend: `…` any leading axes, `B` batch, `T` target steps, `I` input capsules, `O` output capsules, `D` capsule size.
All of them compute in float32 (float64 for float64 input) whatever autocast says, and answer in the type of the votes.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hf_capsule_mt.ops.guided_scores_fused import fused_guided_scores
from hf_capsule_mt.ops.guided_scores_native import native_guided_scores
from hf_capsule_mt.ops.routing_blockwise import blockwise, blockwise_guided_scores
from hf_capsule_mt.ops.routing_dispatch import choose_guided_scores, choose_routing
from hf_capsule_mt.ops.routing_fused import fused_dynamic_routing, fused_em_routing
from hf_capsule_mt.ops.routing_native import VOTE_LIMIT, half_gradient, native_dynamic_routing, native_em_routing
from hf_capsule_mt.ops.routing_reference import dynamic_routing as reference_dynamic_routing
from hf_capsule_mt.ops.routing_reference import em_routing as reference_em_routing
from hf_capsule_mt.ops.routing_reference import guided_pooling as reference_guided_pooling
from hf_capsule_mt.ops.routing_reference import guided_routing as reference_guided_routing
from hf_capsule_mt.ops.routing_reference import guided_scores as reference_guided_scores
from hf_capsule_mt.ops.routing_reference import sequence_routing as reference_sequence_routing

INVERSE_TEMPERATURE = 0.01  # of Eq. (14), DLA

# Asked once: compilers of older releases cannot trace the question.
AUTOCAST_KINDS = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia") if torch.amp.is_autocast_available(kind)
)

RoutingResult = Tensor | tuple[Tensor, Tensor]


def dynamic_routing(
    votes: Tensor,
    iterations: int = 3,
    mask: Tensor | None = None,
    normalize: bool = False,
    return_assignments: bool = False,
    *,
    stop_assignment_gradient: bool = False,
    implementation: str | None = None,
) -> RoutingResult:
    """Routing by agreement: Eq. (5)-(9) and Algorithm 1, DLA.

    Args:
        votes: `[…, I, O, D]`, the vote of each input capsule for each output capsule.
        iterations: rounds of routing; the first has uniform assignments.
        mask: `[…, I]`, true for a real input. A masked input weighs exactly 0 in every output capsule.
        normalize: divide the total input by the sum of its weights before squashing: Eq. (7), HEADS.
        return_assignments: also return the assignment probabilities, `[iterations, …, I, O]`, each as it was before
            the update of the capsules; they sum to 1 over the outputs for a real input, to 0 for a masked one.
        stop_assignment_gradient: treat the assignments as constants in the backward pass.
        implementation: `"reference"`, `"blockwise"`, `"native"`, `"fused"`, or None to choose; see
            `explain_routing_choice`.

    Returns:
        capsules `[…, O, D]`, or the pair (capsules, assignments).
    """
    mask = _check_votes(votes, iterations, mask)
    lead = votes.shape[:-3]
    positional = [_positions(votes, 3), _positions(mask, 1)]
    chosen = _choose(votes, [votes], implementation, return_assignments)
    if chosen == "fused":
        options = iterations, normalize, stop_assignment_gradient, return_assignments
        return _fused_answer(fused_dynamic_routing(*positional, *options), lead, return_assignments)
    if chosen == "native":
        flat_votes = _flat_votes(votes)
        found = native_dynamic_routing(flat_votes, positional[1], iterations, normalize, stop_assignment_gradient)
        return _answer(found, [], lead, votes.dtype)

    def route(flat_votes: Tensor, flat_mask: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        working = _working(flat_votes, flat_mask)
        return reference_dynamic_routing(working, flat_mask, iterations, normalize, stop_assignment_gradient)

    capsules, trace = _run(route, positional, [], chosen, return_assignments)
    return _answer(capsules, trace, lead, votes.dtype)


def em_routing(
    votes: Tensor,
    activations: Tensor | None,
    beta_a: Tensor,
    beta_u: Tensor,
    iterations: int = 3,
    inverse_temperature: float = INVERSE_TEMPERATURE,
    variance_floor: float = 1.0,
    mask: Tensor | None = None,
    return_assignments: bool = False,
    *,
    stop_assignment_gradient: bool = False,
    implementation: str | None = None,
) -> RoutingResult:
    """EM routing: Eq. (11)-(16) and Algorithm 2, DLA; Algorithm 2, HEADS when `activations` is None.

    Args:
        votes: `[…, I, O, D]`.
        activations: `[…, I]`, the probability in [0, 1] that an input capsule is present; None means 1 for all.
        beta_a, beta_u: `[O]`, the two learned costs of Eq. (14).
        iterations: rounds of an M step and an E step; the last round has no E step, nothing would read it.
        inverse_temperature: lambda of Eq. (14) is this times `1 - 0.95^t` in round t = 1, 2, ….
        variance_floor: added to every variance; must be above 0, since one input alone in a capsule has variance 0.
        mask, return_assignments, stop_assignment_gradient, implementation: as for `dynamic_routing`.

    Returns:
        capsules `[…, O, D]`, each its mean times its activation probability, or (capsules, assignments).
    """
    mask = _check_votes(votes, iterations, mask)
    # The gradient divides by the square of a variance.
    least = torch.finfo(torch.float64 if votes.dtype == torch.float64 else torch.float32).tiny ** 0.5
    if not least <= variance_floor < math.inf:
        raise ValueError(
            f"variance_floor={variance_floor}: must be finite and above 0 (at least {least:.1e} for votes of "
            f"{votes.dtype}), else one input in a capsule divides by 0"
        )
    _check_shape("beta_a", beta_a, votes.shape[-2:-1])
    _check_shape("beta_u", beta_u, votes.shape[-2:-1])
    lead = votes.shape[:-3]
    log_activations = None
    if activations is not None:
        _check_shape("activations", activations, votes.shape[:-2])
        # log 0 has an infinite gradient; at the clamp the gradient is 0 and the input all but absent.
        log_activations = _positions(_precise(activations).clamp(min=1e-30).log(), 1)
    betas = [_precise(beta_a), _precise(beta_u)]
    positional = [_positions(votes, 3), log_activations, _positions(mask, 1)]
    chosen = _choose(votes, [votes, activations, beta_a, beta_u], implementation, return_assignments)
    if chosen == "fused":
        flat_votes, _, flat_mask = positional
        options = iterations, inverse_temperature, variance_floor, stop_assignment_gradient, return_assignments
        found = fused_em_routing(flat_votes, log_activations, *betas, flat_mask, *options)
        return _fused_answer(found, lead, return_assignments)
    if chosen == "native":
        small = log_activations, _precise(beta_a), _precise(beta_u), positional[2]
        settings = iterations, inverse_temperature, variance_floor, stop_assignment_gradient
        return _answer(native_em_routing(_flat_votes(votes), *small, *settings), [], lead, votes.dtype)

    def route(
        flat_votes: Tensor, flat_activations: Tensor | None, flat_mask: Tensor | None, a: Tensor, u: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        return reference_em_routing(
            _working(flat_votes, flat_mask),
            None if flat_activations is None else _without_padding(flat_activations, flat_mask),
            a,
            u,
            flat_mask,
            iterations,
            inverse_temperature,
            variance_floor,
            stop_assignment_gradient,
            return_assignments,
        )

    capsules, trace = _run(route, positional, betas, chosen, return_assignments)
    return _answer(capsules, trace, lead, votes.dtype)


def guided_routing(
    votes: Tensor,
    guide: Tensor,
    vote_keys: Tensor,
    output_weight: Tensor,
    score_weight: Tensor,
    iterations: int = 3,
    mask: Tensor | None = None,
    return_assignments: bool = False,
    *,
    implementation: str | None = None,
) -> RoutingResult:
    """Guided dynamic routing: Eq. (4)-(7) and Algorithm 1, GDR.

    `W_b [z; v; Omega]` of Eq. (7) is split into `W_z z + W_v v + W_o Omega`; what depends on the source alone comes
    in projected, and no `[B, T, I, O, D]` tensor is kept for the backward pass.

    Args:
        votes: `[B, I, O, D]`, shared by all target steps.
        guide: `[B, T, D]`, the decoder states times W_z.
        vote_keys: `[B, I, O, D]`, the votes times W_v.
        output_weight: `[D, D]`, W_o. score_weight: `[D]`, w.
        iterations: rounds of routing; the first has uniform assignments.
        mask: `[B, I]`, true for a real source position.
        return_assignments: also return `[iterations, B, T, I, O]`.
        implementation: of Eq. (7): `"reference"`, `"blockwise"`, `"native"`, `"fused"`, or None to choose.

    Returns:
        capsules `[B, T, O, D]`, or (capsules, assignments).
    """
    mask = _check_guided(votes, iterations, mask, guide, "guided_routing")
    size = votes.shape[-1]
    _check_shape("vote_keys", vote_keys, votes.shape)
    _check_shape("output_weight", output_weight, (size, size))
    _check_shape("score_weight", score_weight, (size,))
    scores = _guided_scores(votes, implementation)
    with _no_autocast(votes):
        capsules, trace = reference_guided_routing(
            _working(votes, mask),
            _precise(guide),
            _working(vote_keys, mask),
            _precise(output_weight),
            _precise(score_weight),
            mask,
            iterations,
            scores,
        )
    capsules = capsules.to(votes.dtype)
    return (capsules, torch.stack(trace)) if return_assignments else capsules


def guided_pooling(
    votes: Tensor,
    guide: Tensor,
    keys: Tensor,
    score_weight: Tensor,
    counts: tuple[int, ...],
    over: str,
    mask: Tensor | None = None,
    return_assignments: bool = False,
    *,
    implementation: str | None = None,
) -> RoutingResult:
    """What section 4.3, GDR compares guided routing with: the classifier CLF and the attention ATTN.

    Args:
        votes: `[B, I, O, D]`, the capsules of one group after those of the other. guide: `[B, T, D]`, W_z z_t.
        keys: `[B, I, G, D]`, one key a group. score_weight: `[D]`, w.
        counts: how many of the O capsules belong to each group. Keys of further groups compete and collect nothing.
        over: `"groups"`, a softmax over the groups (CLF), or `"inputs"`, a softmax over the inputs for each group
            (ATTN).
        mask: `[B, I]`, true for a real source position.
        return_assignments: also return `[1, B, T, I, G]`.
        implementation: as for `guided_routing`.

    Returns:
        capsules `[B, T, O, D]`, or (capsules, assignments).
    """
    mask = _check_guided(votes, 1, mask, guide, "guided_pooling")
    batch, inputs, outputs, size = votes.shape
    if over not in ("groups", "inputs"):
        raise ValueError(f"over={over!r}: must be 'groups' or 'inputs'")
    if sum(counts) != outputs:
        raise ValueError(f"counts={counts}: must add up to the {outputs} outputs of the votes")
    if keys.dim() != 4 or keys.shape[2] < len(counts):
        raise ValueError(f"keys has shape {list(keys.shape)}: must hold a key for each of {len(counts)} groups")
    _check_shape("keys", keys, (batch, inputs, keys.shape[2], size))
    _check_shape("score_weight", score_weight, (size,))
    scores = _guided_scores(votes, implementation)
    with _no_autocast(votes):
        capsules, trace = reference_guided_pooling(
            _working(votes, mask),
            _precise(guide),
            _working(keys, mask),
            _precise(score_weight),
            counts,
            over,
            mask,
            scores,
        )
    capsules = capsules.to(votes.dtype)
    return (capsules, torch.stack(trace)) if return_assignments else capsules


def sequence_routing(
    votes: Tensor,
    iterations: int = 3,
    mask: Tensor | None = None,
    input_scores: Tensor | None = None,
    score_network: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    capsule_positions: Tensor | None = None,
    return_assignments: bool = False,
) -> RoutingResult:
    """A sentence of any length into O capsules: Eq. (7)-(12), (14) and Algorithm 1, CapsNMT.

    Args:
        votes: `[R, B, I, O, D]`, `f(h_i, theta_j)` of every word for every capsule. R is 1, the same votes in every
            iteration, or `iterations`, where each has weights of its own.
        iterations: rounds of routing; the first has uniform assignments.
        mask: `[B, I]`, true for a real word. A masked one weighs exactly 0 in every capsule.
        input_scores: `[B, I, E]`, g of the words; with it agreement is Eq. (14), without it Eq. (12).
        score_network: g for the capsules, `(W_1 [H, D], b_1 [H], W_2 [E, H], b_2 [E])`, given together with
            `input_scores`.
        capsule_positions: `[O, D]`, added to the capsules where they are compared with the words. In the capsules
            that are returned they would be a constant, which the linear map that reads them can add by itself.
        return_assignments: also return `[iterations, B, I, O]`.

    Returns:
        capsules `[B, O, D]`, or (capsules, assignments).
    """
    if votes.dim() != 5:
        raise ValueError(
            f"votes has shape {list(votes.shape)}: must be [iterations or 1, batch, inputs, outputs, size]"
        )
    mask = _check_votes(votes[0], iterations, mask)
    if len(votes) not in (1, iterations):
        raise ValueError(
            f"votes has shape {list(votes.shape)}: must hold 1 set of votes or one for each of {iterations} iterations"
        )
    if (input_scores is None) != (score_network is None):
        raise ValueError("input_scores and score_network must be given together, or neither")
    _, batch, inputs, outputs, size = votes.shape
    if capsule_positions is not None:
        _check_shape("capsule_positions", capsule_positions, (outputs, size))
        capsule_positions = _precise(capsule_positions)
    if input_scores is not None and score_network is not None:
        hidden, width = score_network[0].shape[0], score_network[2].shape[0]
        _check_shape("input_scores", input_scores, (batch, inputs, width))
        for name, found, shape in zip(
            ("W_1", "b_1", "W_2", "b_2"),
            score_network,
            ((hidden, size), (hidden,), (width, hidden), (width,)),
            strict=True,
        ):
            _check_shape(f"{name} of score_network", found, shape)
        input_scores = _working(input_scores, mask)
        first, first_bias, second, second_bias = map(_precise, score_network)
        score_network = (first, first_bias, second, second_bias)
    with _no_autocast(votes):
        capsules, trace = reference_sequence_routing(
            _working(votes, None if mask is None else mask.expand(len(votes), *mask.shape)),
            input_scores,
            score_network,
            capsule_positions,
            mask,
            iterations,
        )
    capsules = capsules.to(votes.dtype)
    return (capsules, torch.stack(trace)) if return_assignments else capsules


def _guided_scores(votes: Tensor, implementation: str | None) -> Callable[..., Tensor]:
    """How Eq. (7), GDR is computed: the rest of guided routing is a few products and small tensors."""
    scores: dict[str, Callable[..., Tensor]] = {
        "reference": reference_guided_scores,
        "blockwise": blockwise_guided_scores,
        "native": native_guided_scores,
        "fused": fused_guided_scores,
    }
    return scores[choose_guided_scores(votes, implementation).implementation]


def _run(
    route: Callable[..., tuple[Tensor, list[Tensor]]],
    positional: list[Tensor | None],
    shared: list[Tensor],
    implementation: str,
    return_assignments: bool,
) -> tuple[Tensor, list[Tensor]]:
    """The reference itself, or the reference block by block."""
    with _no_autocast(positional[0]):
        if implementation == "blockwise":
            return blockwise(lambda *tensors: route(*tensors)[0], positional, shared), []
        capsules, trace = route(*positional, *shared)
        return capsules, trace if return_assignments else []


def _choose(votes: Tensor, tensors: list[Tensor | None], implementation: str | None, return_assignments: bool) -> str:
    differentiable = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return choose_routing(votes, implementation, return_assignments, differentiable).implementation


def _answer(capsules: Tensor, trace: list[Tensor], lead: torch.Size, dtype: torch.dtype) -> RoutingResult:
    """Put the leading axes back: capsules `[…, O, D]`, assignments `[iterations, …, I, O]`."""
    capsules = capsules.reshape(*lead, *capsules.shape[1:]).to(dtype)
    if not trace:
        return capsules
    assignments = torch.stack(trace)
    return capsules, assignments.reshape(len(trace), *lead, *assignments.shape[2:])


def _fused_answer(found: tuple[Tensor, Tensor], lead: torch.Size, return_assignments: bool) -> RoutingResult:
    capsules, assignments = found
    capsules = capsules.reshape(*lead, *capsules.shape[1:])
    if not return_assignments:
        return capsules
    return capsules, assignments.reshape(len(assignments), *lead, *assignments.shape[2:])


class _FromFloat16(torch.autograd.Function):
    """float16 to float32, and the gradient back by [`half_gradient`]."""

    @staticmethod
    def forward(ctx, half: Tensor) -> Tensor:
        return half.float()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return half_gradient(grad)


def _precise(tensor: Tensor) -> Tensor:
    """The tensor in working precision, float32 or float64."""
    if tensor.dtype == torch.float16:
        return _FromFloat16.apply(tensor)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _working(votes: Tensor, mask: Tensor | None) -> Tensor:
    """Votes in working precision, padding 0, inside the range whose squares are finite (all of float16 is)."""
    precise = _without_padding(_precise(votes), mask)
    return precise if votes.dtype == torch.float16 else precise.clamp(-VOTE_LIMIT, VOTE_LIMIT)


def _without_padding(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """0 where `mask` is false, so that even inf and nan in padding (0 times either is nan) reach nothing."""
    if mask is None:
        return tensor
    padding = ~mask.reshape(*mask.shape, *[1] * (tensor.dim() - mask.dim()))
    return tensor.masked_fill(padding, 0.0)


def _no_autocast(tensor: Tensor | None) -> Any:
    kind = "cpu" if tensor is None else tensor.device.type
    if kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _positions(tensor: Tensor | None, kept: int) -> Tensor | None:
    """All but the last `kept` axes as one: `[…, I, O, D]` to `[N, I, O, D]`, `[…, I]` to `[N, I]`."""
    return None if tensor is None else tensor.reshape(-1, *tensor.shape[tensor.dim() - kept :])


def _flat_votes(votes: Tensor) -> Tensor:
    return votes.reshape(-1, *votes.shape[-3:])


def _check_votes(votes: Tensor, iterations: int, mask: Tensor | None) -> Tensor | None:
    """Raise on arguments no routing can work with; returns the mask as booleans of the votes' leading shape."""
    if votes.dim() < 3:
        raise ValueError(f"votes has shape {list(votes.shape)}: must be […, inputs, outputs, size]")
    if not votes.is_floating_point():
        raise ValueError(f"votes has type {votes.dtype}: must be floating point")
    if 0 in votes.shape[-3:]:
        raise ValueError(f"votes has shape {list(votes.shape)}: inputs, outputs and size must each be at least 1")
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations={iterations!r}: must be an integer of at least 1")
    if mask is None:
        return None
    if mask.is_floating_point():
        raise ValueError(
            f"mask has type {mask.dtype}: must be boolean (or integer), true for a real input; an additive mask of 0 "
            "and -inf would mean the opposite"
        )
    try:
        return mask.bool().expand(votes.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"mask has shape {list(mask.shape)}: must fit the votes without outputs and size, "
            f"{list(votes.shape[:-2])}, one value for each input"
        ) from None


def _check_guided(votes: Tensor, iterations: int, mask: Tensor | None, guide: Tensor, name: str) -> Tensor | None:
    """`_check_votes` for functions whose votes are shared by all target steps; the guide must go with them."""
    if votes.dim() != 4:
        raise ValueError(f"votes has shape {list(votes.shape)}: {name} takes [batch, inputs, outputs, size]")
    mask = _check_votes(votes, iterations, mask)
    batch, size = votes.shape[0], votes.shape[-1]
    if guide.dim() != 3 or guide.shape[0] != batch or guide.shape[-1] != size:
        raise ValueError(f"guide has shape {list(guide.shape)}: must be [{batch}, steps, {size}] to go with the votes")
    return mask


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {list(tensor.shape)}: must be {list(shape)} to go with the votes")
