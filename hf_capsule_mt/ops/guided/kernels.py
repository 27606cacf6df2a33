"""The Triton kernels of Eq. (7), GDR: they sum `w^T tanh(guide + keys + context)` tile by tile and never store it.

Legend: `B` batch, `T` target steps, `I` inputs, `O` outputs, `D` size; `BT`, `BI`, `BD` the sides of a tile, powers of
two. The first axis of the grid is sentence and output, `[B * O, …]`. All tensors are float32. `inside` marks the
elements that exist.
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("the fused routing kernels need Triton: pip install triton") from error


@triton.jit
def tanh(x):
    """From an exponential that cannot overflow. Near 0, where the quotient would lose digits, from the series."""
    size = tl.abs(x)
    power = tl.exp(-2.0 * size)
    far = (1.0 - power) / (1.0 + power)
    square = x * x
    near = x * (1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835)))))
    return tl.where(size < 0.25, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _load_rows(rows, start, count, OUTPUTS: tl.constexpr, SIZE: tl.constexpr, sizes, BLOCK: tl.constexpr):
    """Load the rows `[BLOCK, BD]` of one output from `[count, O, D]`, with 0 outside."""
    numbers = start + tl.arange(0, BLOCK)[:, None]
    inside = (numbers < count) & (sizes[None, :] < SIZE)
    return tl.load(rows + numbers.to(tl.int64) * (OUTPUTS * SIZE) + sizes[None, :], mask=inside, other=0.0)


@triton.jit
def _load_states(
    guide, context, sentence, output, start, steps, sizes, OUTPUTS: tl.constexpr, SIZE: tl.constexpr, BT: tl.constexpr
):
    """The part that does not depend on the input: guide plus context, `[BT, BD]`."""
    states = _load_rows(guide + sentence * steps * SIZE, start, steps, 1, SIZE, sizes, BT)
    rows = context + sentence * steps * (OUTPUTS * SIZE) + output * SIZE
    return states + _load_rows(rows, start, steps, OUTPUTS, SIZE, sizes, BT)


@triton.jit
def _score_places(
    sentence, output, step, entry, steps, inputs, OUTPUTS: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr
):
    """Offsets in `[B, T, I, O]` of a tile `[BT, BI]`, and whether each exists."""
    rows = step + tl.arange(0, BT)[:, None]
    columns = entry + tl.arange(0, BI)[None, :]
    places = ((sentence * steps + rows) * inputs + columns) * OUTPUTS + output
    return places, (rows < steps) & (columns < inputs)


@triton.jit(do_not_specialize=["steps", "inputs"])
def guided_scores_kernel(
    guide,
    keys,
    context,
    score_weight,
    scores,
    steps,
    inputs,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    BT: tl.constexpr,
    BI: tl.constexpr,
    BD: tl.constexpr,
):
    """Grid `[B * O, T / BT, I / BI]`."""
    sentence = (tl.program_id(0) // OUTPUTS).to(tl.int64)
    output = tl.program_id(0) % OUTPUTS
    step, entry = tl.program_id(1) * BT, tl.program_id(2) * BI
    rows = keys + sentence * inputs * (OUTPUTS * SIZE) + output * SIZE
    total = tl.zeros([BT, BI, BD], tl.float32)  # summed across threads once, after the loop
    for first in range(0, SIZE, BD):
        sizes = first + tl.arange(0, BD)
        weight = tl.load(score_weight + sizes, mask=sizes < SIZE, other=0.0)
        states = _load_states(guide, context, sentence, output, step, steps, sizes, OUTPUTS, SIZE, BT)
        words = _load_rows(rows, entry, inputs, OUTPUTS, SIZE, sizes, BI)
        total += tanh(states[:, None, :] + words[None, :, :]) * weight[None, None, :]
    places, inside = _score_places(sentence, output, step, entry, steps, inputs, OUTPUTS, BT, BI)
    tl.store(scores + places, tl.sum(total, axis=2), mask=inside)


@triton.jit(do_not_specialize=["steps", "inputs"])
def guided_scores_grad_context_kernel(
    guide,
    keys,
    context,
    score_weight,
    grad_scores,
    grad_context,
    grad_weights,
    steps,
    inputs,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    BT: tl.constexpr,
    BI: tl.constexpr,
    BD: tl.constexpr,
):
    """Grid `[B * O, T / BT, D / BD]`. Each program stores its part of the gradient of w in `[B * O, T / BT, D]`."""
    sentence = (tl.program_id(0) // OUTPUTS).to(tl.int64)
    output = tl.program_id(0) % OUTPUTS
    step = tl.program_id(1) * BT
    sizes = tl.program_id(2) * BD + tl.arange(0, BD)
    weight = tl.load(score_weight + sizes, mask=sizes < SIZE, other=0.0)
    rows = keys + sentence * inputs * (OUTPUTS * SIZE) + output * SIZE
    states = _load_states(guide, context, sentence, output, step, steps, sizes, OUTPUTS, SIZE, BT)
    total = tl.zeros([BT, BD], tl.float32)
    grad_weight = tl.zeros([BD], tl.float32)
    entry = tl.zeros([], tl.int32)
    while entry < inputs:
        words = _load_rows(rows, entry, inputs, OUTPUTS, SIZE, sizes, BI)
        places, inside = _score_places(sentence, output, step, entry, steps, inputs, OUTPUTS, BT, BI)
        grad_output = tl.load(grad_scores + places, mask=inside, other=0.0)[:, :, None]
        hidden = tanh(states[:, None, :] + words[None, :, :])
        total += tl.sum(grad_output * (1.0 - hidden * hidden), axis=1)
        grad_weight += tl.sum(tl.sum(grad_output * hidden, axis=1), axis=0)
        entry += BI
    numbers = step + tl.arange(0, BT)[:, None]
    inside = (numbers < steps) & (sizes[None, :] < SIZE)
    places = ((sentence * steps + numbers) * OUTPUTS + output) * SIZE + sizes[None, :]
    tl.store(grad_context + places, total * weight[None, :], mask=inside)
    part = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(grad_weights + part * SIZE + sizes, grad_weight, mask=sizes < SIZE)


@triton.jit(do_not_specialize=["steps", "inputs"])
def guided_scores_grad_keys_kernel(
    guide,
    keys,
    context,
    score_weight,
    grad_scores,
    grad_keys,
    steps,
    inputs,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    BT: tl.constexpr,
    BI: tl.constexpr,
    BD: tl.constexpr,
):
    """Grid `[B * O, I / BI, D / BD]`."""
    sentence = (tl.program_id(0) // OUTPUTS).to(tl.int64)
    output = tl.program_id(0) % OUTPUTS
    entry = tl.program_id(1) * BI
    sizes = tl.program_id(2) * BD + tl.arange(0, BD)
    weight = tl.load(score_weight + sizes, mask=sizes < SIZE, other=0.0)
    start = sentence * inputs * (OUTPUTS * SIZE) + output * SIZE
    words = _load_rows(keys + start, entry, inputs, OUTPUTS, SIZE, sizes, BI)
    total = tl.zeros([BI, BD], tl.float32)
    step = tl.zeros([], tl.int32)
    while step < steps:
        states = _load_states(guide, context, sentence, output, step, steps, sizes, OUTPUTS, SIZE, BT)
        places, inside = _score_places(sentence, output, step, entry, steps, inputs, OUTPUTS, BT, BI)
        grad_output = tl.load(grad_scores + places, mask=inside, other=0.0)[:, :, None]
        hidden = tanh(states[:, None, :] + words[None, :, :])
        total += tl.sum(grad_output * (1.0 - hidden * hidden), axis=0)
        step += BT
    numbers = entry + tl.arange(0, BI)[:, None]
    inside = (numbers < inputs) & (sizes[None, :] < SIZE)
    places = numbers.to(tl.int64) * (OUTPUTS * SIZE) + sizes[None, :]
    tl.store(grad_keys + start + places, total * weight[None, :], mask=inside)
