"""Parts that the Triton kernels of dynamic and EM routing share: loads, stores, and the two softmaxes.

A program routes a few positions through all rounds, with their votes in registers. Only the files `triton.py` import
the kernels, when the first one runs. So the package works without Triton.

Legend: `N` positions, `I` inputs, `O` outputs, `D` size. `NB` is the number of positions that a program routes at
once. `IB`, `OB`, `DB` are `I`, `O`, `D` rounded up to powers of two, as Triton requires. A tile is `[NB, IB, OB, DB]`;
a summed axis is dropped. Rounding up adds padding: `columns` `[1, OB]` and `depths` `[1, 1, DB]` are false there, and
`real` `[NB, IB]` is false there and for masked inputs. `inside` marks the elements that exist. `VECTOR` is the largest
number of neighbouring outputs in a thread. It is small enough that the warps of a program divide the outputs, and a
sum over the inputs stays inside a thread.

No assignments are stored between rounds. One pass over the votes computes those of the next round from the means,
precisions and offsets `[NB, OB]` of this one (in dynamic routing, from the sum of the capsules). The backward passes
recompute the assignments of each round in the same way, from the first round on.
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("the fused routing kernels need Triton: pip install triton") from error

VOTE_LIMIT = tl.constexpr(1e12)
LOWEST = tl.constexpr(-1e30)
# In a smaller sum of assignments the small ones have underflowed. Shares are then computed from logarithms.
SMALLEST_TOTAL = tl.constexpr(1e-30)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def reciprocal(x):
    """1 / x, and 1 where x is 0. For sums that are 0 only if all their terms are 0."""
    return 1.0 / tl.where(x == 0.0, 1.0, x)


@triton.jit
def block_positions(block, positions, NB: tl.constexpr):
    """The numbers `[NB]` of a block's positions, and whether each exists."""
    numbers = block * NB + tl.arange(0, NB).to(tl.int64)
    return numbers, numbers < positions


@triton.jit
def load_inputs(log_activations, mask, numbers, exists, INPUTS: tl.constexpr, IB: tl.constexpr):
    """`real`, the log activation of each input, and its activation, which is 0 if the input is not real."""
    inputs = tl.arange(0, IB)[None, :]
    places = numbers[:, None] * INPUTS + inputs
    real = exists[:, None] & (inputs < INPUTS)
    if mask is not None:
        real = real & (tl.load(mask + places, mask=real, other=0) != 0)
    log_present = tl.zeros(real.shape, tl.float32)
    if log_activations is not None:
        log_present = tl.load(log_activations + places, mask=real, other=0.0)
    return real, log_present, tl.where(real, tl.exp(log_present), 0.0)


@triton.jit
def load_votes(
    votes,
    numbers,
    stride_n,
    stride_i,
    real,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
    DB: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """A tile of votes in float32: 0 in the padding, clamped so that squares are finite."""
    inputs = tl.arange(0, IB).to(tl.int64)[None, :, None, None]
    outputs = tl.max_contiguous(tl.arange(0, OB), VECTOR)[None, None, :, None]
    sizes = tl.arange(0, DB)[None, None, None, :]
    inside = real[:, :, None, None] & (outputs < OUTPUTS) & (sizes < SIZE)
    places = votes + numbers[:, None, None, None] * stride_n + inputs * stride_i + outputs * SIZE + sizes
    loaded = tl.load(places, mask=inside, other=0.0)
    tile = loaded.to(tl.float32)
    if loaded.dtype != tl.float16:  # float16 is always within the limit; nan stays nan
        tile = tl.where(tile > VOTE_LIMIT, VOTE_LIMIT, tile)
        tile = tl.where(tile < -VOTE_LIMIT, -VOTE_LIMIT, tile)
    return tile


@triton.jit
def store_grad_votes(
    grad_votes,
    numbers,
    exists,
    grad,
    tile,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
    DB: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Store the gradient of a tile: 0 for votes at the limit; finite values stay finite in float16."""
    inputs = tl.arange(0, IB)[None, :, None, None]
    outputs = tl.max_contiguous(tl.arange(0, OB), VECTOR)[None, None, :, None]
    sizes = tl.arange(0, DB)[None, None, None, :]
    inside = exists[:, None, None, None] & (inputs < INPUTS) & (outputs < OUTPUTS) & (sizes < SIZE)
    if grad_votes.dtype.element_ty == tl.float16:
        limited = tl.where(grad > 65504.0, 65504.0, tl.where(grad < -65504.0, -65504.0, grad))
        grad = tl.where(tl.abs(grad) < float("inf"), limited, grad)
    else:
        grad = tl.where(tl.abs(tile) < VOTE_LIMIT, grad, 0.0)
    places = (
        grad_votes
        + numbers[:, None, None, None] * (INPUTS * OUTPUTS * SIZE)
        + (inputs * OUTPUTS + outputs) * SIZE
        + sizes
    )
    tl.store(places, grad.to(grad_votes.dtype.element_ty), mask=inside)


@triton.jit
def store_assignments(
    assignments,
    iteration,
    numbers,
    exists,
    positions,
    tile,
    real,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    IB: tl.constexpr,
    OB: tl.constexpr,
):
    """Store one round's assignments in `[iterations, N, I, O]`."""
    inputs = tl.arange(0, IB)[None, :, None]
    outputs = tl.arange(0, OB)[None, None, :]
    inside = exists[:, None, None] & (inputs < INPUTS) & (outputs < OUTPUTS)
    rows = tl.cast(iteration, tl.int64) * positions + numbers
    places = assignments + rows[:, None, None] * (INPUTS * OUTPUTS) + inputs * OUTPUTS + outputs
    tl.store(places, tl.where(real[:, :, None], tile, 0.0), mask=inside)


@triton.jit
def capsule_places(numbers, exists, OUTPUTS: tl.constexpr, SIZE: tl.constexpr, OB: tl.constexpr, DB: tl.constexpr):
    """Offsets of capsules `[NB, OB, DB]`, and whether each exists."""
    outputs = tl.arange(0, OB)[None, :, None]
    sizes = tl.arange(0, DB)[None, None, :]
    inside = exists[:, None, None] & (outputs < OUTPUTS) & (sizes < SIZE)
    return numbers[:, None, None] * (OUTPUTS * SIZE) + outputs * SIZE + sizes, inside


@triton.jit
def uniform(columns, OUTPUTS: tl.constexpr, NB: tl.constexpr, IB: tl.constexpr, OB: tl.constexpr):
    """The assignments of the first round, and the logarithm of the softmax's denominator."""
    assignments = tl.zeros([NB, IB, OB], tl.float32) + tl.where(columns, 1.0 / OUTPUTS, 0.0)[:, None, :]
    return assignments, tl.log(tl.full([NB, IB], OUTPUTS, tl.float32))


@triton.jit
def softmax_over_outputs(logits):
    """Assignments `[NB, IB, OB]`, and the logarithm of the softmax's denominator `[NB, IB]`."""
    top = tl.max(logits, axis=2)
    powers = tl.exp(logits - top[:, :, None])
    sums = tl.sum(powers, axis=2)
    return powers * (1.0 / sums)[:, :, None], top + tl.log(sums)


@triton.jit
def shares_by_logarithm(scores, real, columns):
    """Softmax of `scores` over the inputs, and the sum of their exponentials. Exact even if all of them are small."""
    inside = real[:, :, None] & columns[:, None, :]
    scores = tl.where(inside, scores, LOWEST)
    top = tl.max(scores, axis=1)
    powers = tl.where(inside, tl.exp(scores - top[:, None, :]), 0.0)
    sums = tl.sum(powers, axis=1)
    return powers * reciprocal(sums)[:, None, :], tl.exp(top) * sums


@triton.jit
def any_small(total, columns):
    return tl.min(tl.min(tl.where(columns, total, 1.0), axis=1), axis=0) < SMALLEST_TOTAL
