"""int8 by the compiled part of this package: one call a linear map, one call a step of a Marian decoder.

Without it (no C compiler when the package was installed, no x86 processor with AVX2) PyTorch's own int8 is used.

Legend: `R` rows, `in` and `out` widths of a linear map.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from hf_capsule_mt.ops.native_library import LIBRARY

BLOCK, TOGETHER = 64, 4  # as in native/int8_linear.h
PRODUCTS_PER_THREAD = 2**23


@functools.cache
def native_levels() -> int:
    """How many steps there are from 0 to 1 in a byte of an input, 0 where the compiled part cannot multiply here."""
    return 0 if LIBRARY is None else LIBRARY.int8_levels()


class NativeWeights:
    """The weight of a linear map as bytes, in the order in which `native/int8_linear.h` reads them."""

    def __init__(self, rounded: Tensor, scales: Tensor) -> None:
        """`rounded` `[out, in]` in int8, and what their units stand for, `[out]`."""
        self.out_features, self.in_features = rounded.shape
        wide = -self.in_features % TOGETHER, -self.out_features % BLOCK
        padded = torch.nn.functional.pad(rounded, (0, wide[0], 0, wide[1]))
        blocks = padded.view(-1, BLOCK, padded.shape[1] // TOGETHER, TOGETHER)
        self.weights = blocks.transpose(1, 2).contiguous()
        self.scales = scales.float().contiguous()
        self.offsets = rounded.sum(dim=1, dtype=torch.int32)

    def addresses(self) -> tuple[int, int, int]:
        return self.weights.data_ptr(), self.scales.data_ptr(), self.offsets.data_ptr()

    def __call__(self, inputs: Tensor, bias: Tensor | None, levels: int, scaled: bool) -> Tensor:
        """`inputs` `[…, in]` to `[…, out]`; not `scaled`, the inputs are between -1 and 1."""
        rows = inputs.reshape(-1, self.in_features)
        if rows.dtype != torch.float32 or rows.stride(-1) != 1:
            rows = rows.float().contiguous()
        count = len(rows)
        outputs = rows.new_empty(count, self.out_features)
        if count:
            LIBRARY.int8_linear(
                min(torch.get_num_threads(), count * self.weights.numel() // PRODUCTS_PER_THREAD),
                (*self.addresses(), 0 if bias is None else bias.data_ptr(), rows.data_ptr(), outputs.data_ptr()),
                (self.in_features, self.out_features, levels, count, rows.stride(0), scaled),
            )
        return outputs if inputs.dim() == 2 else outputs.view(*inputs.shape[:-1], self.out_features)


def described(weights: Any, bias: Tensor | None, levels: int) -> tuple[int, ...]:
    """The numbers of a `Linear` of `native/int8_linear.h`."""
    address = 0 if bias is None else bias.data_ptr()
    return *weights.addresses(), address, weights.in_features, weights.out_features, levels


def marian_step(plan: Tensor, states: Tensor, outputs: Tensor, history: Tensor, place: int) -> None:
    """All layers of a decoder for the words at `place`: `states` `[R, d]` to `outputs` `[L, R, d]`.

    `plan` are the numbers of a `Plan` of `native/marian_step.h`, `history` `[R, room]` the rows of the cache that each
    row goes on from.
    """
    states = states.contiguous()
    tensors = (plan, states, outputs, history)
    LIBRARY.marian_step(tuple(tensor.data_ptr() for tensor in tensors), len(states), place)


def aggregate(plan: Tensor, outputs: Tensor) -> Tensor:
    """Routing over layers: `outputs` `[R, L, d]`, in any layout that has `d` together, to `[R, d]`; `plan` are the
    numbers of an `Aggregation` of `native/aggregation.h`.
    """
    rows, layers, width = outputs.shape
    found = outputs.new_empty(rows, width)
    if rows:
        addresses = plan.data_ptr(), outputs.data_ptr(), found.data_ptr()
        LIBRARY.aggregate(addresses, (rows, outputs.stride(1), outputs.stride(0)))
    return found
