"""The interface of a reward for sequence-level training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class SampledBatch:
    """Samples of the sentences of one batch, as token ids without padding, start and end tokens."""

    sources: Sequence[Sequence[int]]  # one a sentence
    references: Sequence[Sequence[int]]  # one a sentence
    samples: Sequence[Sequence[int]]  # all samples of all sentences; duplicates of a sentence are merged
    sentence_of: Sequence[int]  # for each sample the index of its sentence


class Reward(Protocol):
    """Scores samples; higher is better, about 0 to 1."""

    name: str

    def submit(self, batch: SampledBatch) -> Callable[[], list[float]]:
        """Begin to score. The returned function waits for the scores, one a sample, and is called once."""

    def after_step(self) -> dict[str, float]:
        """Update a reward that learns, after a step. Returns numbers for the log."""

    def state(self) -> dict[str, Any]:
        """The state that an exact resume needs: tensors and plain values, saved without pickling."""

    def load(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """End worker processes."""
