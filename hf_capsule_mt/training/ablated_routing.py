"""Training and evaluation with an ablation of routing, for the comparison that shows whether routing is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hf_capsule_mt.analysis.ablation.routing_ablation import routing_ablation
from hf_capsule_mt.analysis.routing_sites import routing_sites


class AblatedRouting:
    """Puts `routing_ablation` of the training arguments around training, evaluation and prediction.

    The seed is that of the run. A batch of one sentence keeps its own assignments under `"shuffled"`, with a warning.
    """

    def __init__(self, args: Any) -> None:
        self.name: str | None = getattr(args, "routing_ablation", None)
        self.seed: int = args.seed
        self.is_on = False

    def as_dict(self) -> dict[str, Any] | None:
        """The name and the seed, for the record of a run; None without an ablation."""
        return None if self.name is None else {"name": self.name, "seed": self.seed}

    @contextmanager
    def in_model(self, model: nn.Module) -> Iterator[None]:
        """Within this context `model` has the ablation, if there is one. Contexts may be nested."""
        if self.name is None or self.is_on:
            yield
            return
        with routing_ablation(model, self.name, self.seed, alone="keep"):
            self.is_on = True
            try:
                yield
            finally:
                self.is_on = False


def ablation_problems(args: Any, model: nn.Module) -> list[str]:
    """What is wrong with `routing_ablation` for this model."""
    name = getattr(args, "routing_ablation", None)
    if name is None:
        return []
    try:
        routing_sites(model)
    except ValueError as error:
        return [f"routing_ablation={name!r}: {error}"]
    return []
