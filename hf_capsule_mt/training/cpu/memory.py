"""Memory of training steps on a CPU: the process keeps what a step frees, and the next step uses it again.

The C library returns large blocks to the system at once. The next step asks for them again, and the system fills each
page with zeros when the step first uses it. At base size that took a quarter of the processor time of a step. On a GPU
PyTorch keeps freed memory for the same reason.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Parameters of glibc's `mallopt`.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8
# One arena, so that the backward pass uses the same memory.
TRAINING_SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}
# glibc's own values. In a process with large blocks it raises the thresholds by itself to these values. The number of
# arenas may stay at one: glibc fixes it when it next starts a thread.
GLIBC_DEFAULTS = {MMAP_MAX: 65_536, MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20, ARENA_MAX: 0}


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """In this block the process keeps memory that it frees; afterwards it gives back what it can.

    Does nothing on a GPU, with another C library, or if the environment sets glibc's allocator.
    """
    library = _library() if device.type == "cpu" else None
    if library is None:
        yield
        return
    try:
        for parameter, value in TRAINING_SETTINGS.items():
            library.mallopt(parameter, value)
        yield
    finally:
        for parameter, value in GLIBC_DEFAULTS.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


def _library() -> Any:
    """glibc, or None if this process has another C library or its user has set the allocator."""
    by_user = any(name.startswith("MALLOC_") for name in os.environ)
    if by_user or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version, library.mallopt, library.malloc_trim  # noqa: B018
    except (OSError, TypeError, AttributeError):  # TypeError: Windows
        return None
    return library
