"""What commands share: numbers that are checked, a device that can be used, an end by Ctrl-C without a traceback."""

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

INTERRUPTED = 130  # the exit code of a program that SIGINT has ended


def at_least_one(text: str) -> int:
    """An integer of at least 1, as a type for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return value


def finite_number(text: str) -> float:
    """A number that is neither infinite nor NaN, as a type for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a finite number")
    return value


def usable_device(name: str) -> Any:
    """PyTorch's device of this name; a ValueError if it cannot be used here."""
    import torch  # takes seconds, which `--help` need not

    try:
        device = torch.device(name)
        if device.type == "meta":
            raise NotImplementedError("it holds no numbers")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"--device {name}: PyTorch cannot use it here ({reason}); use --device cpu") from error
    return device


def run_command(work: Callable[[], int], left: str = "nothing was written") -> int:
    """The exit code of `work`; Ctrl-C is one line, which says what the command has `left`, and code 130."""
    try:
        return work()
    except KeyboardInterrupt:
        print(f"interrupted: {left}", file=sys.stderr)
        return INTERRUPTED
