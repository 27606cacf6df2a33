"""Routing a block of positions at a time, keeping only its inputs for the backward pass.

The reference functions make a dozen temporaries the size of the votes in every iteration, and autograd keeps most of
them. Here the forward pass keeps none and the backward pass computes a block again before it differentiates it, so
that a training step holds the votes and nothing larger, and the temporaries of a block stay in the cache of a CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

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


class _GuidedScores(torch.autograd.Function):
    """Eq. (7), GDR without a `[B, T, I, O, D]` tensor kept for backward: target steps go through in blocks."""

    @staticmethod
    def forward(ctx: FunctionCtx, guide: Tensor, keys: Tensor, context: Tensor, score_weight: Tensor) -> Tensor:
        ctx.save_for_backward(guide, keys, context, score_weight)
        batch, inputs, outputs, size = keys.shape
        scores = keys.new_empty(batch, guide.shape[1], inputs, outputs)
        for rows, steps in _guided_blocks(guide, keys):
            hidden = _hidden(guide[rows, steps], keys[rows], context[rows, steps])
            scores[rows, steps] = (hidden.view(-1, size) @ score_weight).view(hidden.shape[:-1])
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_scores: Tensor) -> tuple[Tensor, ...]:
        guide, keys, context, score_weight = ctx.saved_tensors
        size = len(score_weight)
        grad_context, grad_keys = torch.empty_like(context), torch.zeros_like(keys)
        grad_weight = torch.zeros_like(score_weight)
        for rows, steps in _guided_blocks(guide, keys):
            hidden = _hidden(guide[rows, steps], keys[rows], context[rows, steps])
            grad = grad_scores[rows, steps]
            grad_weight += grad.reshape(-1) @ hidden.view(-1, size)
            # d tanh = 1 - tanh^2, in place: `hidden` is not needed any more. The score weight is the same for all
            # and waits until the sums are taken.
            slopes = hidden.square_().neg_().add_(1.0).mul_(grad.unsqueeze(-1))
            torch.sum(slopes, dim=2, out=grad_context[rows, steps])
            grad_keys[rows] += slopes.sum(dim=1)
        grad_context *= score_weight
        grad_keys *= score_weight
        return grad_context.sum(dim=2), grad_keys, grad_context, grad_weight


def _hidden(guide: Tensor, keys: Tensor, context: Tensor) -> Tensor:
    """`tanh(guide + keys + context)`, `[B, T, I, O, D]` of one block."""
    return (keys[:, None] + (guide[:, :, None] + context)[:, :, None]).tanh_()


def _guided_blocks(guide: Tensor, keys: Tensor) -> list[tuple[slice, slice]]:
    """Slices of the batch and of the target axis, each pair a block of at most the allowed number of elements."""
    batch, steps = guide.shape[:2]
    sentence = keys[0].numel() if batch else 1
    length = min(block_length(sentence, keys.device), max(steps, 1))
    rows = max(1, block_length(sentence * length, keys.device))
    return [
        (slice(row, row + rows), slice(start, start + length))
        for row in range(0, batch, rows)
        for start in range(0, steps, length)
    ]


def blockwise_guided_scores(guide: Tensor, keys: Tensor, context: Tensor, score_weight: Tensor) -> Tensor:
    """`guided_scores` of the reference, with its memory bounded in the forward and the backward pass."""
    return _GuidedScores.apply(guide, keys, context, score_weight)
