"""Restores the states of the random generators after an evaluation, so that it changes no later training step."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """After this block Python, NumPy and PyTorch draw the numbers that they would have drawn without it."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
