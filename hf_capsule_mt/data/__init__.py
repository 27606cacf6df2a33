"""Data: corpora and their cleaning, a synthetic language pair, a lossless joint tokenizer, tokenised batches.

Names are loaded on first use, so this import is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_capsule_mt.data.batches.dataset_lengths import pair_lengths
    from hf_capsule_mt.data.batches.preprocessing import preprocess_pairs
    from hf_capsule_mt.data.batches.token_batches import TokenBatchSampler
    from hf_capsule_mt.data.corpora.cleaning import CleaningReport, CleaningRules
    from hf_capsule_mt.data.corpora.load import Corpus, load_corpus
    from hf_capsule_mt.data.synthetic.pairs import (
        Constituent,
        SentencePair,
        SyntheticPair,
        split_of,
        synthetic_dataset,
        synthetic_lines,
    )
    from hf_capsule_mt.data.tokenizer import marian_token_ids, train_tokenizer

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
    "CleaningReport": "corpora.cleaning",
    "CleaningRules": "corpora.cleaning",
    "Corpus": "corpora.load",
    "TokenBatchSampler": "batches.token_batches",
    "load_corpus": "corpora.load",
    "marian_token_ids": "tokenizer",
    "pair_lengths": "batches.dataset_lengths",
    "preprocess_pairs": "batches.preprocessing",
    "train_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'synthetic.pairs')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
