"""Translating a list of sentences with any encoder-decoder."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from hf_capsule_mt.evaluation.evaluation_mode import evaluation_mode
from hf_capsule_mt.evaluation.texts import check_texts, listed


def source_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The most tokens that a source may have: the model's positions, else the tokenizer's limit, None for none."""
    longest = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    return longest if longest is not None and longest < LARGE_INTEGER else None


def length_limit(model: Any, source_tokens: int, generation: dict[str, Any]) -> dict[str, int]:
    """How long translations of sources of so many tokens may become, where neither `generation` nor the model's
    generation config says it: twice as long and 50 tokens more. Transformers' own default is 20 tokens."""
    given = {**vars(model.generation_config), **generation}
    if given.get("max_length") is not None or given.get("max_new_tokens") is not None:
        return {}
    wanted = 2 * source_tokens + 50
    return {"max_new_tokens": min(wanted, getattr(model.config, "max_position_embeddings", None) or wanted)}


def check_limits(model: Any, length_penalty: float, max_new_tokens: int | None = None) -> None:
    """Raise a ValueError for a penalty that ranks nothing, and for translations longer than the model can write."""
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty={length_penalty!r}: must be a finite number")
    table = getattr(model.get_decoder(), "embed_positions", None)
    positions = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(table, torch.nn.Embedding) or positions is None or max_new_tokens is None:
        return
    if max_new_tokens > positions:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}: the model has {positions} positions; ask for at most {positions}"
        )


@overload
def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: str,
    batch_size: int = 32,
    show_progress: bool = False,
    **generation: Any,
) -> str: ...


@overload
def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    batch_size: int = 32,
    show_progress: bool = False,
    **generation: Any,
) -> list[str]: ...


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: str | Sequence[str],
    batch_size: int = 32,
    show_progress: bool = False,
    **generation: Any,
) -> str | list[str]:
    """Translate one sentence into one string, or a list of sentences into the list of their translations.

    Sentences of like length share a batch. One that is longer than the model has positions for is truncated, with a
    warning that names it; an empty one is an error. `generation` goes to `model.generate`; where neither it nor the
    model's generation config limits the length, translations may be twice as long as the source and 50 tokens more.
    """
    one = isinstance(sentences, str)
    sentences = [sentences] if isinstance(sentences, str) else listed(sentences=sentences)
    check_texts(sentences=sentences)
    empty = [index for index, sentence in enumerate(sentences) if not sentence.strip()]
    if empty:
        raise ValueError(f"sentence {empty[0]} is empty: there is nothing to translate, leave it out")
    longest = source_limit(model, tokenizer)
    lengths = [len(ids) for ids in tokenizer(list(sentences))["input_ids"]] if sentences else []
    for index, length in enumerate(lengths):
        if longest is not None and length > longest:
            warnings.warn(f"sentence {index} has {length} tokens, truncated to the model's {longest}", stacklevel=2)
    generation |= length_limit(model, max(lengths, default=0), generation)
    order = sorted(range(len(sentences)), key=lambda index: -lengths[index])
    translations = [""] * len(sentences)
    translator: Any = model  # PreTrainedModel does not say that it generates
    with evaluation_mode(model):
        for start in _progress(range(0, len(order), batch_size), show_progress):
            chosen = order[start : start + batch_size]
            batch = tokenizer(
                [sentences[index] for index in chosen],
                padding=True,
                truncation=longest is not None,
                max_length=longest,
                return_tensors="pt",
                return_token_type_ids=False,
            ).to(model.device)
            with torch.no_grad():
                tokens = translator.generate(**batch, **generation)
            for index, text in zip(chosen, tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
                translations[index] = text
    return translations[0] if one else translations


def _progress(batches: range, wanted: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(batches, desc="translating", unit="batch", disable=not wanted)
