"""Eq. (7), GDR on a CPU by compiled code (`csrc/guided_scores.h`).

The code sums each hyperbolic tangent as soon as it is computed, so no `[B, T, I, O, D]` tensor is in memory. All
tensors are float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_capsule_mt.ops.native_library import LIBRARY, address

TANGENTS_PER_THREAD = 2**16  # fewer are not worth starting a thread


def _run(backward: bool, keys: Tensor, steps: int, tensors: list[Tensor | None]) -> None:
    """Call the C code. `tensors` are in the order of `py_guided_scores` in module.c."""
    batch, inputs, outputs, size = keys.shape
    if not batch or not steps:
        return
    threads = min(torch.get_num_threads(), max(1, keys.numel() * steps // TANGENTS_PER_THREAD))
    addresses = tuple(map(address, tensors))
    LIBRARY.guided_scores(backward, threads, addresses, (batch, steps, inputs, outputs, size))


class _NativeGuidedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        guide, keys, context, weight = tensors = [tensor.contiguous() for tensor in arguments]
        ctx.save_for_backward(*tensors)
        scores = guide.new_empty(len(keys), guide.shape[1], *keys.shape[1:3])
        _run(False, keys, guide.shape[1], [guide, keys, context, weight, None, scores, None, None, None])
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor, ...]:
        guide, keys, context, weight = ctx.saved_tensors
        grads = [torch.zeros_like(tensor) for tensor in (keys, context, weight)]
        tensors = [guide, keys, context, weight, grad_scores.contiguous(), None, *grads]
        _run(True, keys, guide.shape[1], tensors)
        return grads[1].sum(dim=2), *grads


def native_guided_scores(guide: Tensor, keys: Tensor, context: Tensor, score_weight: Tensor) -> Tensor:
    """The reference's `guided_scores`: `[B, T, D]`, `[B, I, O, D]`, `[B, T, O, D]` and `[D]` to `[B, T, I, O]`."""
    return _NativeGuidedScores.apply(guide, keys, context, score_weight)
