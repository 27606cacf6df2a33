"""Dynamic and EM routing by Triton kernels, as operators that autograd, torch.compile and torch.export know.

A position's votes are read once, all rounds happen in registers, and its capsules are written once; the backward pass
reads the votes again, computes the rounds again, and writes the gradient of the votes once. Nothing is kept for it
but the arguments. Sums are float32, and no two programs add to one number: two runs agree to the last bit.

Memory traffic is counted so, with `s` bytes a vote: `s (I O D + O D)` a position forward,
`s (2 I O D + O D)` backward.
What is small beside it (mask, activations, betas, and assignments when they are asked for) is left out.

Votes are `[N, I, O, D]` in float32, bfloat16 or float16, log activations `[N, I]` and betas `[O]` float32, masks
`[N, I]` boolean; the kernels clamp votes and ignore padding as `routing.py` does for the other implementations.
"""

import functools
import re
from typing import Any

import torch
from torch import Tensor

# A copy of this file under another name (code that comes with a model) has operators of its own.
NAMESPACE = re.sub(r"\W", "_", __name__.rpartition(".")[0])

ELEMENTS_PER_WARP = 1024  # of a tile: 32 a thread, which a backward pass at the papers' sizes holds without spilling
LARGEST_TILE = 2**15
MOST_WARPS = 16
RESIDENT_WARPS = 32  # on a processor, at most: how many programs share the sums for the betas


def padded(count: int) -> int:
    """The next power of two. As a loop, because a compiler can follow it for a size that it does not know."""
    power = 1
    while power < count:
        power *= 2
    return power


def tile_elements(inputs: int, outputs: int, size: int) -> int:
    """How many numbers a program holds for each tensor of the size of one position's votes."""
    return padded(inputs) * padded(outputs) * padded(size)


@functools.cache
def _kernels() -> dict[str, Any]:
    from hf_capsule_mt.ops.dynamic_routing_kernels import dynamic_backward_kernel, dynamic_forward_kernel
    from hf_capsule_mt.ops.em_routing_kernels import em_backward_kernel, em_forward_kernel

    kernels = (dynamic_forward_kernel, dynamic_backward_kernel, em_forward_kernel, em_backward_kernel)
    return {kernel.fn.__name__: kernel for kernel in kernels}


def _blocks(votes: Tensor) -> tuple[int, dict[str, int]]:
    """How many blocks of positions there are, and the sizes a kernel is compiled for."""
    positions, inputs, outputs, size = votes.shape
    elements = tile_elements(inputs, outputs, size)
    block = max(1, ELEMENTS_PER_WARP // elements)
    warps = min(MOST_WARPS, max(1, elements // ELEMENTS_PER_WARP))
    sizes = {"INPUTS": inputs, "OUTPUTS": outputs, "SIZE": size}
    sizes |= {"NB": block, "IB": padded(inputs), "OB": padded(outputs), "DB": padded(size)}
    sizes |= {"VECTOR": min(8, max(1, padded(outputs) // (32 * warps))), "num_warps": warps}
    return -(-positions // block), sizes


def _launch(name: str, programs: int, votes: Tensor, *arguments: Any, **sizes: Any) -> None:
    if programs > 0:
        with torch.cuda.device_of(votes):
            _kernels()[name][(programs,)](votes, *arguments, **sizes)


def _rows_together(votes: Tensor) -> Tensor:
    """Votes whose `[O, D]` of one input lie together, as they do in a product with all vote matrices side by side."""
    outputs, size = votes.shape[-2:]
    together = (size == 1 or votes.stride(-1) == 1) and (outputs == 1 or votes.stride(-2) == size)
    return votes if together else votes.contiguous()


def _as_bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous().view(torch.uint8)


def _empty_results(votes: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Room for capsules, and for the assignments of `kept` rounds."""
    positions, inputs, outputs, size = votes.shape
    capsules = votes.new_empty(positions, outputs, size)
    return capsules, votes.new_empty(kept, positions, inputs, outputs, dtype=torch.float32)


@torch.library.custom_op(f"{NAMESPACE}::fused_dynamic_routing", mutates_args=())
def fused_dynamic_routing(
    votes: Tensor,
    mask: Tensor | None,
    iterations: int,
    normalize: bool,
    stop_assignment_gradient: bool,
    return_assignments: bool,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1, DLA (HEADS with `normalize`): capsules, and assignments `[iterations, N, I, O]` or nothing in them.

    There is no gradient through the assignments.
    """
    votes = _rows_together(votes)
    capsules, assignments = _empty_results(votes, iterations if return_assignments else 0)
    blocks, sizes = _blocks(votes)
    arguments = (
        _as_bytes(mask),
        capsules,
        assignments if return_assignments else None,
        len(votes),
        *votes.stride()[:2],
    )
    _launch("dynamic_forward_kernel", blocks, votes, *arguments, NORMALIZE=normalize, ITERATIONS=iterations, **sizes)
    return capsules, assignments


@fused_dynamic_routing.register_fake
def _(votes, mask, iterations, normalize, stop_assignment_gradient, return_assignments):
    return _empty_results(votes, iterations if return_assignments else 0)


@torch.library.custom_op(f"{NAMESPACE}::fused_dynamic_routing_backward", mutates_args=())
def fused_dynamic_routing_backward(
    votes: Tensor, mask: Tensor | None, grad_capsules: Tensor, iterations: int, normalize: bool, steps: int
) -> Tensor:
    """The gradient of the votes, back through the last `steps` rounds."""
    votes = _rows_together(votes)
    grad_votes = votes.new_empty(votes.shape)
    blocks, sizes = _blocks(votes)
    arguments = (_as_bytes(mask), grad_capsules.contiguous(), grad_votes, len(votes), *votes.stride()[:2])
    sizes |= {"NORMALIZE": normalize, "ITERATIONS": iterations, "STEPS": steps}
    _launch("dynamic_backward_kernel", blocks, votes, *arguments, **sizes)
    return grad_votes


@fused_dynamic_routing_backward.register_fake
def _(votes, mask, grad_capsules, iterations, normalize, steps):
    return votes.new_empty(votes.shape)


def _keep_dynamic(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    votes, mask, ctx.iterations, ctx.normalize, stop_assignment_gradient, _ = inputs
    ctx.steps = 1 if stop_assignment_gradient else ctx.iterations
    ctx.save_for_backward(votes, mask)


def _dynamic_gradients(ctx: Any, grad_capsules: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    votes, mask = ctx.saved_tensors
    grad = fused_dynamic_routing_backward(votes, mask, grad_capsules, ctx.iterations, ctx.normalize, ctx.steps)
    return grad, None, None, None, None, None


fused_dynamic_routing.register_autograd(_dynamic_gradients, setup_context=_keep_dynamic)


@torch.library.custom_op(f"{NAMESPACE}::fused_em_routing", mutates_args=())
def fused_em_routing(
    votes: Tensor,
    log_activations: Tensor | None,
    beta_a: Tensor,
    beta_u: Tensor,
    mask: Tensor | None,
    iterations: int,
    inverse_temperature: float,
    variance_floor: float,
    stop_assignment_gradient: bool,
    return_assignments: bool,
) -> tuple[Tensor, Tensor]:
    """Algorithm 2, DLA: capsules, and assignments `[iterations, N, I, O]` or nothing in them.

    There is no gradient through the assignments.
    """
    votes = _rows_together(votes)
    capsules, assignments = _empty_results(votes, iterations if return_assignments else 0)
    blocks, sizes = _blocks(votes)
    _launch(
        "em_forward_kernel",
        blocks,
        votes,
        None if log_activations is None else log_activations.contiguous(),
        beta_a.contiguous(),
        beta_u.contiguous(),
        _as_bytes(mask),
        capsules,
        assignments if return_assignments else None,
        len(votes),
        *votes.stride()[:2],
        inverse_temperature,
        variance_floor,
        ITERATIONS=iterations,
        **sizes,
    )
    return capsules, assignments


@fused_em_routing.register_fake
def _(
    votes,
    log_activations,
    beta_a,
    beta_u,
    mask,
    iterations,
    inverse_temperature,
    variance_floor,
    stop_assignment_gradient,
    return_assignments,
):
    return _empty_results(votes, iterations if return_assignments else 0)


@torch.library.custom_op(f"{NAMESPACE}::fused_em_routing_backward", mutates_args=())
def fused_em_routing_backward(
    votes: Tensor,
    log_activations: Tensor | None,
    beta_a: Tensor,
    beta_u: Tensor,
    mask: Tensor | None,
    grad_capsules: Tensor,
    iterations: int,
    inverse_temperature: float,
    variance_floor: float,
    steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the votes, of the log activations (empty without any), and of both betas `[2, O]`."""
    votes = _rows_together(votes)
    grad_votes = votes.new_empty(votes.shape)
    grad_activations = beta_a.new_empty(0 if log_activations is None else votes.shape[:2])
    blocks, sizes = _blocks(votes)
    programs = min(blocks, _programs(votes.device, sizes["num_warps"]))
    grad_betas = beta_a.new_empty(2, programs, len(beta_a))
    _launch(
        "em_backward_kernel",
        programs,
        votes,
        None if log_activations is None else log_activations.contiguous(),
        beta_a.contiguous(),
        beta_u.contiguous(),
        _as_bytes(mask),
        grad_capsules.contiguous(),
        grad_votes,
        None if log_activations is None else grad_activations,
        grad_betas,
        len(votes),
        *votes.stride()[:2],
        inverse_temperature,
        variance_floor,
        ITERATIONS=iterations,
        STEPS=steps,
        **sizes,
    )
    return grad_votes, grad_activations, grad_betas.sum(dim=1)


@fused_em_routing_backward.register_fake
def _(
    votes,
    log_activations,
    beta_a,
    beta_u,
    mask,
    grad_capsules,
    iterations,
    inverse_temperature,
    variance_floor,
    steps,
):
    grad_activations = beta_a.new_empty(0 if log_activations is None else votes.shape[:2])
    return votes.new_empty(votes.shape), grad_activations, beta_a.new_empty(2, len(beta_a))


@functools.cache
def _programs(device: torch.device, warps: int) -> int:
    """As many as run at a time, each of which takes several blocks; two in the interpreter, which runs one."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count * max(1, RESIDENT_WARPS // warps)


def _keep_em(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.iterations, ctx.inverse_temperature, ctx.variance_floor, stop_assignment_gradient, _ = inputs
    ctx.steps = 1 if stop_assignment_gradient else ctx.iterations
    ctx.save_for_backward(*tensors)


def _em_gradients(ctx: Any, grad_capsules: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    votes, log_activations, beta_a, beta_u, mask = ctx.saved_tensors
    rest = ctx.iterations, ctx.inverse_temperature, ctx.variance_floor, ctx.steps
    grad_votes, grad_activations, grad_betas = fused_em_routing_backward(
        votes, log_activations, beta_a, beta_u, mask, grad_capsules, *rest
    )
    kept = None if log_activations is None else grad_activations
    return grad_votes, kept, grad_betas[0], grad_betas[1], None, None, None, None, None, None


fused_em_routing.register_autograd(_em_gradients, setup_context=_keep_em)
