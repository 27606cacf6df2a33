"""Measures what the coverage warnings of a trained model depend on, and writes it to the configuration."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_capsule_mt.analysis import measure_coverage_scales
from hf_capsule_mt.evaluation import overlap_rates

SENTENCES = 200


def measure_bow_accuracy(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[dict[str, str]], source: str, target: str
) -> float | None:
    """Measures `bow_accuracy` on the first sentences of `pairs` and writes it to the model's configuration.

    It is `r_OL^P` of section 4.3, GDR. None for a model without a bag-of-words loss, or if no pair has two sentences.
    """
    if not _predicts_words(model):
        return None
    rows = islice((row for row in pairs if row[source].strip() and row[target].strip()), SENTENCES)
    sentences = [(row[source], row[target]) for row in rows]
    if not sentences:
        return None
    sources, targets = [one for one, _ in sentences], [other for _, other in sentences]
    rates = overlap_rates(model, tokenizer, sources, targets)
    model.config.bow_accuracy = round(rates.past, 4)
    return model.config.bow_accuracy


def write_coverage_scales(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[dict[str, str]], source: str, target: str
) -> None:
    """Measures `coverage_scales` on the first of `pairs` and writes them to the configuration.

    Does nothing for a model without a bag-of-words loss, or if no pair has two sentences.
    """
    if _predicts_words(model):
        scales = measure_coverage_scales(model, tokenizer, ((row[source], row[target]) for row in pairs))
        model.config.coverage_scales = None if scales is None else [math.ceil(scale * 1e3) / 1e3 for scale in scales]


def _predicts_words(model: Any) -> bool:
    return hasattr(model.config, "bow_accuracy") and bool(getattr(model.auxiliary_losses, "has_bow", False))
