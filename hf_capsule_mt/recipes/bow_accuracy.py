"""Measures the accuracy of a trained model's bag-of-words predictions. Coverage warnings depend on it."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

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


def _predicts_words(model: Any) -> bool:
    return hasattr(model.config, "bow_accuracy") and bool(getattr(model.auxiliary_losses, "has_bow", False))
