"""A linear map of one vector on all cores of a CPU, for [`SplitLinear`].

BLAS multiplies one vector with a matrix on a single core. Greedy decoding of one sentence consists of such products.
A batch of a few smaller products runs on all cores.
"""

import torch
from torch import Tensor, nn


def linear_in_parts(linear: nn.Linear, features: Tensor) -> Tensor | None:
    """`linear(features)`, with the rows of the weight split among the cores; None if that is not faster."""
    if (
        torch.compiler.is_compiling()
        or features.numel() != linear.in_features
        or torch.is_grad_enabled()
        or features.device.type != "cpu"
        or features.dtype != torch.float32
        or not linear.weight.is_contiguous()
    ):
        return None
    # `out_features` can be wrong: tying the layer to a resized embedding changes only the weight.
    parts = split_count(len(linear.weight), torch.get_num_threads())
    if parts == 1:
        return None
    weight = linear.weight.view(parts, -1, linear.in_features).transpose(1, 2)  # [parts, in, out / parts], no copy
    product = torch.bmm(features.reshape(1, 1, -1).expand(parts, -1, -1), weight)
    output = product.reshape(*features.shape[:-1], len(linear.weight))
    return output if linear.bias is None else output + linear.bias


def split_count(rows: int, threads: int) -> int:
    """The smallest divisor of `rows` from `threads` to `4 * threads`; 1 if there is none."""
    if threads == 1:
        return 1
    return next((parts for parts in range(threads, 4 * threads + 1) if rows % parts == 0), 1)
