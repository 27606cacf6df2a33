"""The Triton kernels of dynamic routing. See `triton_helpers.py` for the legend."""

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
    reciprocal,
    shares_by_logarithm,
    softmax_over_outputs,
    store_assignments,
    store_grad_votes,
    uniform,
)


@triton.jit
def _weighted_sum(tile, assignments, context, log_totals, real, columns, NORMALIZE: tl.constexpr):
    """Eq. (6), DLA or Eq. (7), HEADS: the weights `[NB, IB, OB]` and the weighted sum of the votes `[NB, OB, DB]`."""
    weights = tl.where(real[:, :, None], assignments, 0.0)
    if NORMALIZE:
        total = tl.sum(weights, axis=1)
        weights = weights * reciprocal(total)[:, None, :]
        if any_small(total, columns):
            scores = tl.sum(tile * context[:, None, :, :], axis=3) - log_totals[:, :, None]
            weights, _ = shares_by_logarithm(scores, real, columns)
    return weights, tl.sum(weights[:, :, :, None] * tile, axis=1)


@triton.jit
def _squash(sums):
    """Eq. (5), DLA."""
    squared = tl.sum(sums * sums, axis=2)
    return sums * (tl.sqrt(squared) / (1.0 + squared))[:, :, None]


@triton.jit
def _squash_backward(sums, grad):
    squared = tl.sum(sums * sums, axis=2)
    norm = tl.sqrt(squared)
    directions = sums * reciprocal(norm)[:, :, None]
    shrunk = norm / (1.0 + squared)
    # squash multiplies a vector of length n by f = n / (1 + n^2). In the direction of `sums` the derivative is
    # f + n * f', in every other direction it is f.
    along = shrunk * ((1.0 - squared) / (1.0 + squared)) * tl.sum(directions * grad, axis=2)
    return grad * shrunk[:, :, None] + directions * along[:, :, None]


@triton.jit
def _dynamic_rounds(
    tile,
    rounds,
    real,
    columns,
    assignments_out,
    numbers,
    exists,
    positions,
    NORMALIZE: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NB: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
    DB: tl.constexpr,
):
    """Run `rounds` rounds. Returns the next assignments, and `context`, the sum of all capsules so far `[NB, OB, DB]`.

    The logits of Algorithm 1, DLA are the sum over all rounds of votes times capsules, so the votes times `context`.
    """
    assignments, log_totals = uniform(columns, OUTPUTS, NB, IB, OB)
    context = tl.zeros([NB, OB, DB], tl.float32)
    for iteration in range(rounds):
        if assignments_out is not None:
            store_assignments(
                assignments_out, iteration, numbers, exists, positions, assignments, real, INPUTS, OUTPUTS, IB, OB
            )
        _, sums = _weighted_sum(tile, assignments, context, log_totals, real, columns, NORMALIZE)
        context += _squash(sums)
        logits = tl.sum(tile * context[:, None, :, :], axis=3)
        assignments, log_totals = softmax_over_outputs(tl.where(columns[:, None, :], logits, float("-inf")))
    return assignments, context, log_totals


@triton.jit(do_not_specialize=["positions"])
def dynamic_forward_kernel(
    votes,
    mask,
    capsules,
    assignments_out,
    positions,
    stride_n,
    stride_i,
    NORMALIZE: tl.constexpr,
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
    """Algorithm 1, DLA; with `NORMALIZE` Algorithm 1, HEADS."""
    columns = tl.arange(0, OB)[None, :] < OUTPUTS
    numbers, exists = block_positions(tl.program_id(0).to(tl.int64), positions, NB)
    real, _, _ = load_inputs(None, mask, numbers, exists, INPUTS, IB)
    tile = load_votes(votes, numbers, stride_n, stride_i, real, OUTPUTS, SIZE, IB, OB, DB, VECTOR)
    assignments, context, log_totals = _dynamic_rounds(
        tile,
        ITERATIONS - 1,
        real,
        columns,
        assignments_out,
        numbers,
        exists,
        positions,
        NORMALIZE,
        INPUTS,
        OUTPUTS,
        NB,
        IB,
        OB,
        DB,
    )
    if assignments_out is not None:
        store_assignments(
            assignments_out, ITERATIONS - 1, numbers, exists, positions, assignments, real, INPUTS, OUTPUTS, IB, OB
        )
    _, sums = _weighted_sum(tile, assignments, context, log_totals, real, columns, NORMALIZE)
    places, inside = capsule_places(numbers, exists, OUTPUTS, SIZE, OB, DB)
    tl.store(capsules + places, _squash(sums).to(capsules.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["positions"])
def dynamic_backward_kernel(
    votes,
    mask,
    grad_capsules,
    grad_votes,
    positions,
    stride_n,
    stride_i,
    NORMALIZE: tl.constexpr,
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
    """The gradient of `dynamic_forward_kernel`, back through the last `STEPS` rounds."""
    columns = tl.arange(0, OB)[None, :] < OUTPUTS
    numbers, exists = block_positions(tl.program_id(0).to(tl.int64), positions, NB)
    real, _, _ = load_inputs(None, mask, numbers, exists, INPUTS, IB)
    tile = load_votes(votes, numbers, stride_n, stride_i, real, OUTPUTS, SIZE, IB, OB, DB, VECTOR)
    places, inside = capsule_places(numbers, exists, OUTPUTS, SIZE, OB, DB)
    grad_output = tl.load(grad_capsules + places, mask=inside, other=0.0).to(tl.float32)
    grad_context = tl.zeros([NB, OB, DB], tl.float32)
    grad_tile = tl.zeros([NB, IB, OB, DB], tl.float32)
    for back in range(STEPS):
        assignments, context, log_totals = _dynamic_rounds(
            tile,
            ITERATIONS - 1 - back,
            real,
            columns,
            None,
            numbers,
            exists,
            positions,
            NORMALIZE,
            INPUTS,
            OUTPUTS,
            NB,
            IB,
            OB,
            DB,
        )
        weights, sums = _weighted_sum(tile, assignments, context, log_totals, real, columns, NORMALIZE)
        grad_sums = _squash_backward(sums, grad_output)
        grad_tile += weights[:, :, :, None] * grad_sums[:, None, :, :]
        changes = tile
        if NORMALIZE:  # through the softmax over the inputs
            changes = tile - sums[:, None, :, :]
        grad_log = weights * tl.sum(changes * grad_sums[:, None, :, :], axis=3)
        grad_logits = grad_log - assignments * tl.sum(grad_log, axis=2)[:, :, None]
        # The logits of the first round are constants. With stopped gradients all logits are.
        grad_logits = tl.where(back + 1 < STEPS, grad_logits, 0.0)
        grad_tile += grad_logits[:, :, :, None] * context[:, None, :, :]
        grad_context += tl.sum(grad_logits[:, :, :, None] * tile, axis=1)
        grad_output = grad_context
    store_grad_votes(grad_votes, numbers, exists, grad_tile, tile, INPUTS, OUTPUTS, SIZE, IB, OB, DB, VECTOR)
