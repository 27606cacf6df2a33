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
    from hf_capsule_mt.data.tokenizer import marian_token_ids, preprocess_pairs, train_tokenizer

__all__ = [
    "Constituent",
    "SentencePair",
    "SyntheticPair",
    "marian_token_ids",
    "preprocess_pairs",
    "split_of",
    "synthetic_dataset",
    "synthetic_lines",
    "train_tokenizer",
]
_FROM_TOKENIZER = ("marian_token_ids", "preprocess_pairs", "train_tokenizer")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "tokenizer" if name in _FROM_TOKENIZER else "synthetic"
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
