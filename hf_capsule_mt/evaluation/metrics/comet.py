"""COMET, as a module for `evaluate`. It needs unbabel-comet only when it computes."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from hf_capsule_mt.evaluation.scoring.comet import comet_scores


class Comet(evaluate.Metric):
    """COMET. Options of `compute`: those of `comet_scores`, such as `model` and `python`."""

    def _info(self) -> Any:
        names = ("sources", "predictions", "references")
        return evaluate.MetricInfo(
            description="COMET, by the package unbabel-comet.",
            citation="",
            inputs_description="sources, predictions and references: one text each.",
            features=datasets.Features({name: datasets.Value("string") for name in names}),
        )

    def _compute(
        self, sources: Sequence[str], predictions: Sequence[str], references: Sequence[str], **options: Any
    ) -> dict[str, Any]:
        scores = comet_scores(sources, predictions, references, **options)
        return {
            "score": scores.score,
            "signature": scores.signature,
            "sentence_scores": list(scores.sentence_scores),
        }
