"""Translating lines as they come, and scoring pairs by force-decoding.

A score is the sum of the log probabilities of the target's tokens, the end token among them, divided by their number
to the power of `length_penalty`, as beam search ranks its hypotheses; the logits are the model's, before any
processor. Translations are scored as pairs are, by force-decoding what the search found, so that the logits of its
steps need not be kept. A text has the score of its translation if the tokenizer cuts it as the model wrote it and the
model had room for the end token.

Legend: `B` sentences, `T` target positions, `V` target vocabulary.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_capsule_mt.data.batches.token_batches import TokenBatchSampler
from hf_capsule_mt.evaluation.decoding import check_limits, length_limit, source_limit
from hf_capsule_mt.evaluation.evaluation_mode import evaluation_mode
from hf_capsule_mt.evaluation.texts import check_texts

# Whatever ends a line or confuses what reads lines: control characters, line and paragraph separators.
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

Progress = Callable[[int], None]  # told how many more lines are done


@dataclass(frozen=True)
class Translation:
    """One translation of one line, with its score where that was asked for."""

    text: str
    score: float | None = None


def one_line(text: str) -> str:
    """`text` on one line, for whatever reads it."""
    return NO_TEXT.sub(" ", text)


def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str],
    max_tokens: int = 4096,
    window: int = 1024,
    n_best: int = 1,
    with_scores: bool = False,
    length_penalty: float | None = None,
    on_progress: Progress | None = None,
    **generation: Any,
) -> Iterator[list[Translation]]:
    """The `n_best` translations of each of `lines`, in their order, best first.

    Args:
        lines: read a `window` of them at a time, so that any number can be translated. A blank line has the empty
            translation; one that is too long for the model is truncated, with a warning that names it.
        max_tokens: of the sources in a batch, padding included; sentences of a window share batches by length.
        n_best: translations of each line, at most the number of beams.
        with_scores: whether to say how likely they are.
        length_penalty: None for what the model's generation config says, 1.0 if it says nothing.
        on_progress: called after every batch with the number of lines that it has translated.
        generation: goes to `model.generate`, `num_beams` above all.
    """
    if isinstance(lines, str | bytes):
        raise ValueError("lines is one string and must be lines of text; pass [text], or text.splitlines()")
    beams = generation.get("num_beams")
    if beams is None:
        beams = model.generation_config.num_beams or 1
    if not isinstance(beams, int) or beams < 1:
        raise ValueError(f"num_beams={beams!r}: must be an integer of at least 1; 1 is greedy search")
    if not 1 <= n_best <= beams:
        raise ValueError(f"n_best={n_best}: must be 1 to the number of beams, {beams}; raise num_beams")
    for name, value in (("window", window), ("max_tokens", max_tokens)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    if length_penalty is None:
        length_penalty = getattr(model.generation_config, "length_penalty", None)
        length_penalty = 1.0 if length_penalty is None else length_penalty
    check_limits(model, length_penalty, generation.get("max_new_tokens"))
    generation |= {"num_return_sequences": n_best} | ({"length_penalty": length_penalty} if beams > 1 else {})
    incoming, first = iter(lines), 1
    while chunk := list(islice(incoming, window)):
        found: list[list[Translation]] = [[Translation("", 0.0 if with_scores else None)] * n_best for _ in chunk]
        rows = [index for index, line in enumerate(chunk) if line.strip()]
        if on_progress is not None:
            on_progress(len(chunk) - len(rows))
        encoded = _encode(model, tokenizer, [chunk[row] for row in rows], [first + row for row in rows])
        for batch in _batches([len(ids) for ids in encoded], max_tokens):
            inputs = tokenizer.pad({"input_ids": [encoded[index] for index in batch]}, return_tensors="pt")
            tokens = _generate(model, inputs.to(model.device), generation)
            texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
            scores: list[float | None] = [None] * len(texts)
            if with_scores:
                sources = [encoded[index] for index in batch for _ in range(n_best)]
                scores = [*_force_decode(model, tokenizer, sources, tokens, max_tokens, length_penalty)]
            translations = [Translation(text, score) for text, score in zip(texts, scores, strict=True)]
            for place, index in enumerate(batch):
                found[rows[index]] = translations[place * n_best : (place + 1) * n_best]
            if on_progress is not None:
                on_progress(len(batch))
        yield from found
        first += len(chunk)


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[str],
    targets: list[str],
    max_tokens: int = 4096,
    length_penalty: float = 1.0,
    on_progress: Progress | None = None,
) -> list[float]:
    """How likely the model finds each target as the translation of its source: the scores of this file's legend.

    `on_progress` is called after every batch with the number of pairs that it has scored.
    """
    check_texts(sources=sources, targets=targets)
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets: must be as many")
    if max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}: must be at least 1")
    check_limits(model, length_penalty)
    encoded = _encode(model, tokenizer, sources, list(range(1, len(sources) + 1)))
    labels = tokenizer(text_target=targets)["input_ids"] if targets else []
    return _force_decode(model, tokenizer, encoded, labels, max_tokens, length_penalty, on_progress)


def _force_decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[list[int]],
    targets: list[list[int]],
    max_tokens: int,
    length_penalty: float,
    on_progress: Progress | None = None,
) -> list[float]:
    """Scores of tokens, those of a target without the start token."""
    scores = [0.0] * len(sources)
    lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    for batch in _batches(lengths, max_tokens):
        inputs = tokenizer.pad({"input_ids": [sources[index] for index in batch]}, return_tensors="pt")
        labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(targets[index]) for index in batch], True, -100)
        labels = labels.to(model.device)
        with evaluation_mode(model), torch.no_grad():
            logits = model(**inputs.to(model.device), labels=labels).logits
        for index, score in zip(batch, _scores(logits, labels, length_penalty), strict=True):
            scores[index] = score
        if on_progress is not None:
            on_progress(len(batch))
    return scores


def _encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], numbers: list[int]
) -> list[list[int]]:
    longest = source_limit(model, tokenizer)
    encoded = tokenizer(texts)["input_ids"] if texts else []
    too_long = [number for number, ids in zip(numbers, encoded, strict=True) if longest and len(ids) > longest]
    if not too_long:
        return encoded
    for number in too_long:
        warnings.warn(f"line {number} has more than {longest} tokens and is truncated there", stacklevel=3)
    return tokenizer(texts, truncation=True, max_length=longest)["input_ids"]


def _batches(lengths: list[int], max_tokens: int) -> Iterable[list[int]]:
    """Indices of sentences of like length, longest first; one alone may have more than `max_tokens`."""
    if not lengths:
        return []
    sizes = [(length, 0) for length in lengths]
    return TokenBatchSampler(sizes, max(max_tokens, *lengths), longest_first=True)


def _generate(model: PreTrainedModel, inputs: Any, generation: dict[str, Any]) -> list[list[int]]:
    """The tokens of each translation, without the start token and what follows the end token."""
    settings = generation | length_limit(model, inputs["input_ids"].shape[1], generation)
    translator: Any = model  # PreTrainedModel does not say that it generates
    with evaluation_mode(model), torch.no_grad():
        tokens = translator.generate(**inputs, **settings)[:, 1:]
    ends = settings.get("eos_token_id", model.generation_config.eos_token_id)
    ends = torch.tensor([] if ends is None else ends, dtype=torch.long, device=tokens.device)
    ended = torch.isin(tokens, ends).long()
    real = ended.cumsum(dim=1) - ended == 0
    return [row[kept].tolist() for row, kept in zip(tokens, real, strict=True)]


def _scores(logits: Tensor, labels: Tensor, length_penalty: float) -> list[float]:
    """`logits` `[B, T, V]`, `labels` `[B, T]`, -100 where there is none."""
    real = labels != -100
    wanted = labels.clamp(min=0).unsqueeze(-1)
    # Sentence by sentence, so that float32 copies are small.
    rows = zip(logits, wanted, strict=True)
    chances = torch.stack([row.float().log_softmax(dim=-1).gather(-1, ids).squeeze(-1) for row, ids in rows])
    return (chances.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1) ** length_penalty).tolist()
