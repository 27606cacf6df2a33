"""Corpora and tokenizers: a synthetic language pair, a lossless joint tokenizer, and their preprocessing.

Names are loaded on first use, so importing this package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "Constituent",
    "SentencePair",
    "SyntheticPair",
    "TokenBatchSampler",
    "marian_token_ids",
    "preprocess_pairs",
    "split_of",
    "synthetic_dataset",
    "synthetic_lines",
    "train_tokenizer",
]
_MODULES = {
    "TokenBatchSampler": "token_batches",
    "marian_token_ids": "tokenizer",
    "preprocess_pairs": "tokenizer",
    "train_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'synthetic')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
