"""A linear map that decodes one sentence on a CPU at the speed of its memory."""

import torch
from torch import Tensor, nn


class SplitLinear(nn.Linear):
    """[`torch.nn.Linear`], the same parameters and products, with the rows of the weight shared out among the cores.

    One vector times a matrix is a BLAS call that runs on a single core, whatever the number of threads; greedy
    decoding of one sentence consists of nothing else. As a batch of a few such products it runs on all of them.
    """

    def forward(self, features: Tensor) -> Tensor:
        rows = features.numel() // self.in_features
        if (
            rows != 1
            or torch.compiler.is_compiling()
            or torch.is_grad_enabled()
            or features.device.type != "cpu"
            or features.dtype != torch.float32
            or not self.weight.is_contiguous()
        ):
            return super().forward(features)
        # Not `out_features`: tying an output layer to a resized embedding changes the weight alone.
        parts = split_count(len(self.weight), torch.get_num_threads())
        if parts == 1:
            return super().forward(features)
        weight = self.weight.view(parts, -1, self.in_features).transpose(1, 2)  # [parts, in, out / parts], no copy
        product = torch.bmm(features.reshape(1, 1, -1).expand(parts, -1, -1), weight)
        output = product.reshape(*features.shape[:-1], len(self.weight))
        return output if self.bias is None else output + self.bias


def split_count(rows: int, threads: int) -> int:
    """The smallest divisor of `rows` that gives every thread a part, 1 where there is none of reasonable size."""
    if threads == 1:
        return 1
    return next((parts for parts in range(threads, 4 * threads + 1) if rows % parts == 0), 1)
