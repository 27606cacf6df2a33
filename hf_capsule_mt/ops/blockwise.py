"""Routing a block of positions at a time, keeping only its inputs for the backward pass.

The reference functions make a dozen temporaries the size of the votes in every iteration, and autograd keeps most of
them. Here the forward pass keeps none and the backward pass computes a block again before it differentiates it, so
that a training step holds the votes and nothing larger, and the temporaries of a block stay in the cache of a CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Elements of one temporary: small enough that a handful fit a core's cache, large enough to hide Python's overhead.
CPU_BLOCK_ELEMENTS = 2**18
ACCELERATOR_BLOCK_ELEMENTS = 2**25


def block_length(elements_per_position: int, device: torch.device) -> int:
    """How many positions make a block, given the size of one position's votes."""
    limit = CPU_BLOCK_ELEMENTS if device.type == "cpu" else ACCELERATOR_BLOCK_ELEMENTS
    return max(1, limit // max(1, elements_per_position))


class _Blockwise(torch.autograd.Function):
    """`function(*positional, *shared)` block by block over the first axis of the positional tensors."""

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Tensor], positional: int, length: int, *tensors: Tensor | None
    ) -> Tensor:
        ctx.function, ctx.positional, ctx.length = function, positional, length
        ctx.save_for_backward(*tensors)
        return _run(function, positional, length, tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        tensors: tuple[Tensor | None, ...] = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        grads = [
            torch.zeros_like(tensor) if need and tensor is not None else None
            for tensor, need in zip(tensors, needs, strict=True)
        ]
        count = _first(tensors).shape[0]
        for start in range(0, count, ctx.length):
            block = [
                None if tensor is None else tensor.detach().requires_grad_(need)
                for tensor, need in zip(_block(tensors, ctx.positional, start, ctx.length), needs, strict=True)
            ]
            with torch.enable_grad():
                output = ctx.function(*block)
            wanted = [tensor for tensor, need in zip(block, needs, strict=True) if tensor is not None and need]
            found = iter(
                torch.autograd.grad(output, wanted, grad_output[start : start + ctx.length], allow_unused=True)
            )
            for index, grad in enumerate(grads):
                if grad is None:
                    continue
                part = next(found)
                if part is None:
                    continue
                if index < ctx.positional:
                    grad[start : start + ctx.length] = part
                else:
                    grad += part
        return None, None, None, *grads


def _run(function: Callable[..., Tensor], positional: int, length: int, tensors: tuple[Tensor | None, ...]) -> Tensor:
    count = _first(tensors).shape[0]
    blocks = [function(*_block(tensors, positional, start, length)) for start in range(0, max(count, 1), length)]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _first(tensors: tuple[Tensor | None, ...]) -> Tensor:
    """The first tensor, the votes: it is never None and says how many positions there are."""
    votes = tensors[0]
    if votes is None:
        raise ValueError("the first tensor of a blockwise function holds the votes and cannot be None")
    return votes


def _block(tensors: tuple[Tensor | None, ...], positional: int, start: int, length: int) -> tuple[Tensor | None, ...]:
    return tuple(
        tensor[start : start + length] if tensor is not None and index < positional else tensor
        for index, tensor in enumerate(tensors)
    )


def blockwise(function: Callable[..., Tensor], positional: list[Tensor | None], shared: list[Tensor]) -> Tensor:
    """Apply `function` to blocks of the first axis of `positional` (its first tensor is the votes `[N, I, O, D]`).

    `shared` tensors go to every block whole; their gradients are summed over the blocks in order, so that results do
    not change from run to run.
    """
    votes = _first(tuple(positional))
    length = block_length(votes[0].numel() if len(votes) else 1, votes.device)
    if not torch.is_grad_enabled():  # without what autograd costs: in a decoding step, a quarter of the routing
        return _run(function, len(positional), length, (*positional, *shared))
    return _Blockwise.apply(function, len(positional), length, *positional, *shared)
