"""The Triton kernels of EM routing. See `triton_helpers.py` for the legend."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("the fused routing kernels need Triton: pip install triton") from error

from hf_capsule_mt.ops.triton_helpers import (
    any_small,
    block_positions,
    capsule_places,
    load_inputs,
    load_votes,
    log_sigmoid,
    reciprocal,
    shares_by_logarithm,
    sigmoid,
    softmax_over_outputs,
    store_assignments,
    store_grad_votes,
    uniform,
)

LOG_TWO_PI = tl.constexpr(1.8378770664093453)


@triton.jit
def _log_densities(tile, means, precisions, offsets):
    """Eq. (15), DLA in logarithms, `[NB, IB, OB]`."""
    deviations = tile - means[:, None, :, :]
    return offsets[:, None, :] - tl.sum(deviations * deviations * precisions[:, None, :, :], axis=3)


@triton.jit
def _m_step(
    tile,
    assignments,
    means,
    precisions,
    offsets,
    log_totals,
    real,
    log_present,
    present,
    columns,
    depths,
    beta_a,
    beta_u,
    temperature,
    variance_floor,
    SIZE: tl.constexpr,
):
    """Eq. (11)-(14), DLA. The assignments were computed from the arguments `means` to `log_totals`.

    Returns
        the weights of the mean `[NB, IB, OB]`
        their sum before normalization `[NB, OB]`
        the means and the variances without floor, both `[NB, OB, DB]`
        the sum over D of the logarithms of the variances with floor `[NB, OB]`
        the logits of A^Omega `[NB, OB]`
    """
    mass = assignments * present[:, :, None]
    total = tl.sum(mass, axis=1)
    weights = mass * reciprocal(total)[:, None, :]
    if any_small(total, columns):
        scores = _log_densities(tile, means, precisions, offsets) + (log_present - log_totals)[:, :, None]
        weights, total = shares_by_logarithm(scores, real, columns)
    new_means = tl.sum(weights[:, :, :, None] * tile, axis=1)
    deviations = tile - new_means[:, None, :, :]
    variances = tl.sum(weights[:, :, :, None] * deviations * deviations, axis=1)
    log_volume = tl.sum(tl.log(tl.where(depths, variances + variance_floor, 1.0)), axis=2)
    cost = 0.5 * (log_volume + SIZE * (1.0 + LOG_TWO_PI)) * total  # Eq. (13), DLA
    # Eq. (14), DLA: the logits of A^Omega.
    logits = temperature * (beta_a - beta_u * total - cost)
    return weights, total, new_means, variances, log_volume, logits


@triton.jit
def _e_step(tile, means, variances, log_volume, logits, columns, variance_floor, SIZE: tl.constexpr):
    """Eq. (15)-(16), DLA: the assignments, and the precisions, offsets and log totals that `_m_step` needs."""
    precisions = 0.5 / (variances + variance_floor)
    offsets = tl.where(columns, log_sigmoid(logits) - 0.5 * (log_volume + SIZE * LOG_TWO_PI), float("-inf"))
    assignments, log_totals = softmax_over_outputs(_log_densities(tile, means, precisions, offsets))
    return assignments, precisions, offsets, log_totals


@triton.jit
def _em_rounds(
    tile,
    rounds,
    real,
    log_present,
    present,
    columns,
    depths,
    beta_a,
    beta_u,
    inverse_temperature,
    variance_floor,
    assignments_out,
    numbers,
    exists,
    positions,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    NB: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
    DB: tl.constexpr,
):
    """Run `rounds` rounds and the next M step. Returns its assignments, inverse temperature, and results."""
    assignments, log_totals = uniform(columns, OUTPUTS, NB, IB, OB)
    means = tl.zeros([NB, OB, DB], tl.float32)
    precisions = tl.zeros([NB, OB, DB], tl.float32)
    offsets = tl.zeros([NB, OB], tl.float32) + tl.where(columns, 0.0, float("-inf"))
    # 1 - 0.95^t, in float64: all gradients of the betas would have the same error, and it would add up.
    annealing = tl.full([], 0.05, tl.float64)
    temperature = (inverse_temperature * annealing).to(tl.float32)
    weights = tl.zeros([NB, IB, OB], tl.float32)
    total = tl.zeros([NB, OB], tl.float32)
    variances = tl.zeros([NB, OB, DB], tl.float32)
    log_volume = tl.zeros([NB, OB], tl.float32)
    logits = tl.zeros([NB, OB], tl.float32)
    for iteration in range(rounds + 1):
        if iteration > 0:
            assignments, precisions, offsets, log_totals = _e_step(
                tile, means, variances, log_volume, logits, columns, variance_floor, SIZE
            )
            annealing = 0.05 + 0.95 * annealing
            temperature = (inverse_temperature * annealing).to(tl.float32)
        if assignments_out is not None:
            store_assignments(
                assignments_out, iteration, numbers, exists, positions, assignments, real, INPUTS, OUTPUTS, IB, OB
            )
        weights, total, means, variances, log_volume, logits = _m_step(
            tile,
            assignments,
            means,
            precisions,
            offsets,
            log_totals,
            real,
            log_present,
            present,
            columns,
            depths,
            beta_a,
            beta_u,
            temperature,
            variance_floor,
            SIZE,
        )
    return assignments, temperature, weights, total, means, variances, log_volume, logits


@triton.jit(do_not_specialize=["positions"])
def em_forward_kernel(
    votes,
    log_activations,
    beta_a,
    beta_u,
    mask,
    capsules,
    assignments_out,
    positions,
    stride_n,
    stride_i,
    inverse_temperature,
    variance_floor,
    ITERATIONS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    NB: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
    DB: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Algorithm 2, DLA."""
    outputs = tl.arange(0, OB)[None, :]
    columns = outputs < OUTPUTS
    depths = tl.arange(0, DB)[None, None, :] < SIZE
    numbers, exists = block_positions(tl.program_id(0).to(tl.int64), positions, NB)
    real, log_present, present = load_inputs(log_activations, mask, numbers, exists, INPUTS, IB)
    tile = load_votes(votes, numbers, stride_n, stride_i, real, OUTPUTS, SIZE, IB, OB, DB, VECTOR)
    cost_a = tl.load(beta_a + outputs, mask=columns, other=0.0)
    cost_u = tl.load(beta_u + outputs, mask=columns, other=0.0)
    _, _, _, _, means, _, _, logits = _em_rounds(
        tile,
        ITERATIONS - 1,
        real,
        log_present,
        present,
        columns,
        depths,
        cost_a,
        cost_u,
        inverse_temperature,
        variance_floor,
        assignments_out,
        numbers,
        exists,
        positions,
        INPUTS,
        OUTPUTS,
        SIZE,
        NB,
        IB,
        OB,
        DB,
    )
    places, inside = capsule_places(numbers, exists, OUTPUTS, SIZE, OB, DB)
    result = sigmoid(logits)[:, :, None] * means
    tl.store(capsules + places, result.to(capsules.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["positions"])
def em_backward_kernel(
    votes,
    log_activations,
    beta_a,
    beta_u,
    mask,
    grad_capsules,
    grad_votes,
    grad_log_activations,
    grad_betas,
    positions,
    stride_n,
    stride_i,
    inverse_temperature,
    variance_floor,
    ITERATIONS: tl.constexpr,
    STEPS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    NB: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
    DB: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The gradients of `em_forward_kernel`, back through the last `STEPS` rounds.

    A program routes every n-th block of positions, where n is the number of programs. It stores its sum of the
    gradients of both betas in `grad_betas` `[2, programs, O]`. `grad_x` is the derivative of the loss by `x`.
    `grad_scores` `[NB, IB, OB]` is the derivative by the log densities; their softmax gives the assignments of the
    following round.
    """
    outputs = tl.arange(0, OB)[None, :]
    columns = outputs < OUTPUTS
    depths = tl.arange(0, DB)[None, None, :] < SIZE
    cost_a = tl.load(beta_a + outputs, mask=columns, other=0.0)
    cost_u = tl.load(beta_u + outputs, mask=columns, other=0.0)
    grad_a = tl.zeros([OB], tl.float32)
    grad_u = tl.zeros([OB], tl.float32)
    block = tl.program_id(0).to(tl.int64)
    while block * NB < positions:
        numbers, exists = block_positions(block, positions, NB)
        real, log_present, present = load_inputs(log_activations, mask, numbers, exists, INPUTS, IB)
        tile = load_votes(votes, numbers, stride_n, stride_i, real, OUTPUTS, SIZE, IB, OB, DB, VECTOR)
        places, inside = capsule_places(numbers, exists, OUTPUTS, SIZE, OB, DB)
        grad_output = tl.load(grad_capsules + places, mask=inside, other=0.0).to(tl.float32)
        grad_tile = tl.zeros([NB, IB, OB, DB], tl.float32)
        grad_scores = tl.zeros([NB, IB, OB], tl.float32)
        grad_present = tl.zeros([NB, IB], tl.float32)
        for back in range(STEPS):
            assignments, temperature, weights, total, means, variances, log_volume, logits = _em_rounds(
                tile,
                ITERATIONS - 1 - back,
                real,
                log_present,
                present,
                columns,
                depths,
                cost_a,
                cost_u,
                inverse_temperature,
                variance_floor,
                None,
                numbers,
                exists,
                positions,
                INPUTS,
                OUTPUTS,
                SIZE,
                NB,
                IB,
                OB,
                DB,
            )
            deviations = tile - means[:, None, :, :]
            inverse = tl.where(depths, 1.0 / (variances + variance_floor), 0.0)
            presence = sigmoid(logits)
            # Eq. (15) and (16), DLA, of this round. In the last round `grad_scores` is 0.
            pulls = grad_scores[:, :, :, None] * deviations
            grad_offset = tl.sum(grad_scores, axis=1)
            spread = tl.sum(pulls * deviations, axis=1) * inverse
            # Eq. (14) and (13), DLA, and the capsules of the last round.
            grad_presence = grad_offset + presence * tl.sum(grad_output * means, axis=2)
            grad_logits = temperature * grad_presence * sigmoid(-logits)
            grad_a += tl.sum(grad_logits, axis=0)
            grad_u -= tl.sum(grad_logits * total, axis=0)
            grad_total = -grad_logits * (cost_u + 0.5 * (log_volume + SIZE * (1.0 + LOG_TWO_PI)))
            # Eq. (12) and (11), DLA.
            grad_variances = 0.5 * inverse * (spread - (grad_offset + grad_logits * total)[:, :, None])
            grad_means = presence[:, :, None] * grad_output + tl.sum(pulls, axis=1) * inverse
            slopes = grad_means[:, None, :, :] + 2.0 * deviations * grad_variances[:, None, :, :]
            grad_tile += weights[:, :, :, None] * slopes - pulls * inverse[:, None, :, :]
            # The softmax over the inputs. The mean of the deviations is 0, the mean of their squares is the variance.
            changes = grad_means[:, None, :, :] * deviations + grad_variances[:, None, :, :] * (
                deviations * deviations - variances[:, None, :, :]
            )
            grad_log = weights * (tl.sum(changes, axis=3) + (total * grad_total)[:, None, :])
            sums = tl.sum(grad_log, axis=2)
            grad_present += sums
            grad_scores = grad_log - assignments * sums[:, :, None]
            grad_output = tl.zeros([NB, OB, DB], tl.float32)
        store_grad_votes(grad_votes, numbers, exists, grad_tile, tile, INPUTS, OUTPUTS, SIZE, IB, OB, DB, VECTOR)
        if log_activations is not None:
            inputs = tl.arange(0, IB)[None, :]
            inside = exists[:, None] & (inputs < INPUTS)
            tl.store(grad_log_activations + numbers[:, None] * INPUTS + inputs, grad_present, mask=inside)
        block += tl.num_programs(0)
    partial = grad_betas + tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OB)
    tl.store(partial, grad_a, mask=tl.arange(0, OB) < OUTPUTS)
    tl.store(partial + tl.num_programs(0) * OUTPUTS, grad_u, mask=tl.arange(0, OB) < OUTPUTS)
