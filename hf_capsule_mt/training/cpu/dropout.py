"""Dropout of training steps on a CPU by compiled code, see `ops/native_training.py`.

PyTorch draws a random number for each element there, one after the other. The compiled code makes many at once from
one key, and keeps the key for the backward pass in place of a mask. The key comes from PyTorch's generator: results
follow from the seed, and a resumed run goes on with the same numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from hf_capsule_mt.ops.native_training import can_train_natively, native_dropout

FEWEST = 1024  # elements; for fewer, calling the compiled code costs as much as it saves

_replaced: Any = nn.functional.dropout  # what stood there when the first of the running steps began
_lock = Lock()
_steps = 0  # training steps that run now, in all threads


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.dropout`, and by compiled code where that can run."""
    if training and not inplace and 0.0 < p < 1.0 and input.numel() >= FEWEST and can_train_natively(input):
        return native_dropout(input, p)
    return _replaced(input, p, training, inplace)


@contextmanager
def native_dropout_on_cpu(model: nn.Module, device: torch.device) -> Iterator[None]:
    """In this block `torch.nn.functional.dropout` runs compiled code on a CPU; not for models of `torch.compile`.

    It replaces the function, because models call it by its name. A `TorchFunctionMode` does not last: PyTorch leaves
    it in the backward pass, where gradient checkpointing runs layers again.
    """
    compiled = any(vars(module).get("_compiled_call_impl") is not None for module in model.modules())
    if device.type != "cpu" or compiled or isinstance(model, torch._dynamo.OptimizedModule):
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _steps, _replaced
    functional: Any = nn.functional
    with _lock:
        if _steps == 0:
            _replaced = functional.dropout
        _steps += change
        functional.dropout = _dropout if _steps else _replaced
