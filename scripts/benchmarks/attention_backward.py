"""On a CPU in bfloat16, the backward pass of PyTorch's attention takes several times as long as its matrix products.

Needs PyTorch alone: python scripts/benchmarks/attention_backward.py
Prints milliseconds of processor time, forward / backward.
"""

import time

import torch

torch.set_num_threads(1)
shapes = [(250, 4, 16, 32), (64, 8, 32, 64), (32, 8, 64, 64), (8, 8, 256, 64), (4, 8, 512, 64)]


def products(query, key, value):
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value


for dtype in (torch.bfloat16, torch.float32):
    for shape in shapes:  # batch, heads, positions, size of a head
        for attention in (torch.nn.functional.scaled_dot_product_attention, products):
            inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
            times = []
            for _ in range(5):
                start = time.process_time()
                output = attention(*inputs)
                middle = time.process_time()
                output.backward(torch.ones_like(output))
                times.append((time.process_time() - middle, middle - start))
            backward, forward = sorted(times)[2]
            print(dtype, shape, f"{attention.__name__}: {1e3 * forward:.1f} / {1e3 * backward:.1f}")
