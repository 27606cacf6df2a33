"""The training losses in the log of a Trainer."""

from collections.abc import Sequence
from typing import Any


def logged_losses(history: Sequence[dict[str, Any]]) -> tuple[list[list[float]], bool]:
    """The points (step, loss) of a `log_history`, and whether they are `lm_loss`, which never has label smoothing.

    They are `lm_loss` if every logged training loss has it beside it. Otherwise they are `loss`, what training lowers:
    it has label smoothing if the arguments of the training have it.
    """
    rows = [row for row in history if "loss" in row]
    is_plain = bool(rows) and all("lm_loss" in row for row in rows)
    return [[row["step"], row["lm_loss" if is_plain else "loss"]] for row in rows], is_plain
