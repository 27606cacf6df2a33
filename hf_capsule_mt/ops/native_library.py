"""The compiled part of the package (`csrc`), where it was built and loads."""

import importlib
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

INTERFACE = 1  # as in csrc/module.c; a copy of this file that comes with a model may meet another one


def _load() -> tuple[Any, str]:
    """The library, or None and the reason."""
    if "hf_capsule_mt" not in sys.modules:  # a copy of this file, which must not import what it was copied from
        return None, "code that comes with a model is not compiled"
    try:
        library: Any = importlib.import_module("hf_capsule_mt._native")
    except ModuleNotFoundError:
        return None, "the package was installed without its compiled part (no C compiler?)"
    except ImportError as error:
        found = f"the compiled part of the package does not load: {error}"
        warnings.warn(f"{found}. It is slower without; install it again", stacklevel=2)
        return None, found
    number = library.interface() if hasattr(library, "interface") else -1
    if number == 0:
        return None, "the compiled part of the package needs a processor with AVX2"
    if number != INTERFACE:
        found = "the compiled part of the package is that of another version"
        warnings.warn(f"{found}. It is slower without; install it again", stacklevel=2)
        return None, found
    return library, ""


LIBRARY, MISSING = _load()


def address(tensor: Tensor | None, dtype: torch.dtype = torch.float32, together: bool = True) -> int:
    """Where the numbers of a tensor are, 0 for None; an error if they are not what compiled code takes them for."""
    if tensor is None:
        return 0
    if tensor.device.type != "cpu" or tensor.dtype != dtype or (together and not tensor.is_contiguous()):
        raise ValueError(
            f"compiled code takes {dtype} on the CPU, and was given {list(tensor.shape)} of {tensor.dtype} on "
            f"{tensor.device}: all arguments must go with the votes, or the inputs with the weights"
        )
    return tensor.data_ptr()


def tensors_are_traced() -> bool:
    """Whether tensors stand for something else now: under a tracer, a mode, functorch or forward-mode derivatives."""
    return (
        torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )
