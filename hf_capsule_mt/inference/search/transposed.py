"""A transposed copy of an output layer's weight. The product with one vector takes half the time."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class TransposedCopy(NamedTuple):
    """A weight stored as `[in, out]`, and marks of the original weight that show a change."""

    address: int
    checksum: Tensor  # [out], the weight times a fixed vector
    weight: Tensor


_COPIES: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by weight; a copy is deleted together with its weight


@torch.no_grad()
def transposed_copy(weight: Tensor) -> Tensor | None:
    """`weight` `[out, in]` stored as `[in, out]`; None if the weight is not contiguous float32 on the CPU.

    The copy is as large as the weight. It is kept until the weight changes, which the checksum shows. The checksum
    takes as long as one decoding step, so call this function once for many steps.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not weight.is_contiguous():
        return None
    probe = torch.linspace(1.0, 2.0, weight.shape[1], device="cpu").sin()
    address, checksum = weight.data_ptr(), weight @ probe
    copy = _COPIES.get(weight)
    if copy is None or copy.address != address or not torch.equal(copy.checksum, checksum):
        copy = _COPIES[weight] = TransposedCopy(address, checksum, weight.detach().t().contiguous())
    return copy.weight
