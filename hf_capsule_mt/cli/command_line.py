"""Parts that the commands share: help with defaults, checked numbers and devices, errors without a traceback."""

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

INTERRUPTED = 130  # the exit code of a program that SIGINT ended


class CommandHelp(argparse.RawDescriptionHelpFormatter):
    """Help that names the default of each option that has one, unless the option's own text does."""

    def add_argument(self, action: argparse.Action) -> None:
        if isinstance(action.default, str | int | float | list | tuple) and not isinstance(action.default, bool):
            values = action.default if isinstance(action.default, list | tuple) else [action.default]
            text = " ".join(str(value) for value in values).replace("%", "%%")
            if argparse.SUPPRESS not in (text, action.help) and text and "default" not in (action.help or ""):
                action.help = f"{action.help}; default: {text}" if action.help else f"default: {text}"
        super().add_argument(action)


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
    """PyTorch's device of this name. Raises ValueError if it cannot be used on this machine."""
    import torch  # imported late: it takes seconds, and `--help` must be fast

    try:
        device = torch.device(name)
        if device.type == "meta":
            raise NotImplementedError("it holds no numbers")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"--device {name}: PyTorch cannot use it here ({reason}); use --device cpu") from error
    return device


def run_command(work: Callable[[], int], state: str = "nothing was written") -> int:
    """Run `work` and return its exit code.

    ValueError and OSError print their message and give 1. Ctrl-C prints the `state` of the output and gives 130.
    """
    try:
        return work()
    except KeyboardInterrupt:
        print(f"interrupted: {state}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
