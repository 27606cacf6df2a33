"""Corpora and tokenizers: reading and cleaning, a synthetic language pair, a lossless joint tokenizer, and their
preprocessing.

Names are loaded on first use, so importing this package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_capsule_mt.data.cleaning import CleaningReport, CleaningRules
    from hf_capsule_mt.data.corpora import Corpus, load_corpus
    from hf_capsule_mt.data.dataset_lengths import pair_lengths
    from hf_capsule_mt.data.synthetic import (
        Constituent,
        SentencePair,
        SyntheticPair,
        split_of,
        synthetic_dataset,
        synthetic_lines,
    )
    from hf_capsule_mt.data.token_batches import TokenBatchSampler
    from hf_capsule_mt.data.tokenizer import marian_token_ids, preprocess_pairs, train_tokenizer

__all__ = [
    "CleaningReport",
    "CleaningRules",
    "Constituent",
    "Corpus",
    "SentencePair",
    "SyntheticPair",
    "TokenBatchSampler",
    "load_corpus",
    "marian_token_ids",
    "pair_lengths",
    "preprocess_pairs",
    "split_of",
    "synthetic_dataset",
    "synthetic_lines",
    "train_tokenizer",
]
_MODULES = {
    "CleaningReport": "cleaning",
    "CleaningRules": "cleaning",
    "Corpus": "corpora",
    "TokenBatchSampler": "token_batches",
    "load_corpus": "corpora",
    "marian_token_ids": "tokenizer",
    "pair_lengths": "dataset_lengths",
    "preprocess_pairs": "tokenizer",
    "train_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'synthetic')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
