"""Translating lines as they come, and scoring pairs by force-decoding.

A score is the sum of the log probabilities of the target's tokens, the end token among them, divided by their number
to the power of `length_penalty`, as beam search ranks its hypotheses; the logits are the model's, before any
processor. A text has the score of its translation if the tokenizer cuts it as the model wrote it and the end token was
the model's own: beam search counts one that was forced at the greatest length as certain.

Legend: `B` sentences, `T` target positions, `V` target vocabulary.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_capsule_mt.data.token_batches import TokenBatchSampler
from hf_capsule_mt.evaluation.decoding import source_limit


@dataclass(frozen=True)
class Translation:
    """One translation of one line, with its score where that was asked for."""

    text: str
    score: float | None = None


def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str],
    max_tokens: int = 4096,
    window: int = 1024,
    n_best: int = 1,
    with_scores: bool = False,
    length_penalty: float | None = None,
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
        generation: goes to `model.generate`, `num_beams` above all.
    """
    beams = generation.get("num_beams") or model.generation_config.num_beams or 1
    if not 1 <= n_best <= beams:
        raise ValueError(f"n_best={n_best}: must be 1 to the number of beams, {beams}; raise num_beams")
    if length_penalty is None:
        length_penalty = getattr(model.generation_config, "length_penalty", None)
        length_penalty = 1.0 if length_penalty is None else length_penalty
    if beams > 1:
        generation |= {"length_penalty": length_penalty}
    # Beam search ranks by the score that is wanted; greedy search leaves it to be made of the logits.
    generation |= {"num_return_sequences": n_best, "return_dict_in_generate": with_scores}
    generation |= {"output_scores": with_scores and beams > 1, "output_logits": with_scores and beams == 1}
    incoming, first = iter(lines), 1
    while chunk := list(islice(incoming, window)):
        found: list[list[Translation]] = [[Translation("", 0.0 if with_scores else None)] * n_best for _ in chunk]
        rows = [index for index, line in enumerate(chunk) if line.strip()]
        encoded = _encode(model, tokenizer, [chunk[row] for row in rows], [first + row for row in rows])
        for batch in _batches([len(ids) for ids in encoded], max_tokens):
            inputs = tokenizer.pad({"input_ids": [encoded[index] for index in batch]}, return_tensors="pt")
            translations = _generate(
                model, tokenizer, inputs.to(model.device), with_scores, length_penalty, generation
            )
            for place, index in enumerate(batch):
                found[rows[index]] = translations[place * n_best : (place + 1) * n_best]
        yield from found
        first += len(chunk)


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[str],
    targets: list[str],
    max_tokens: int = 4096,
    length_penalty: float = 1.0,
) -> list[float]:
    """How likely the model finds each target as the translation of its source: the scores of this file's legend."""
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets: must be as many")
    encoded = _encode(model, tokenizer, sources, list(range(1, len(sources) + 1)))
    labels = tokenizer(text_target=targets)["input_ids"] if targets else []
    scores = [0.0] * len(sources)
    lengths = [len(source) + len(label) for source, label in zip(encoded, labels, strict=True)]
    for batch in _batches(lengths, max_tokens):
        inputs = tokenizer.pad({"input_ids": [encoded[index] for index in batch]}, return_tensors="pt")
        wanted = torch.nn.utils.rnn.pad_sequence([torch.tensor(labels[index]) for index in batch], True, -100)
        with _evaluating(model), torch.no_grad():
            logits = model(**inputs.to(model.device), labels=wanted.to(model.device)).logits
        for index, score in zip(batch, _scores(logits, wanted.to(model.device), length_penalty), strict=True):
            scores[index] = score
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


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Any,
    with_scores: bool,
    length_penalty: float,
    generation: dict[str, Any],
) -> list[Translation]:
    settings = dict(generation)
    if not {"max_length", "max_new_tokens"} & settings.keys() and model.generation_config.max_length is None:
        settings["max_new_tokens"] = 2 * inputs["input_ids"].shape[1] + 50
    translator: Any = model  # PreTrainedModel does not say that it generates
    with _evaluating(model), torch.no_grad():
        result = translator.generate(**inputs, **settings)
    tokens = result.sequences if with_scores else result
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    if not with_scores:
        return [Translation(text) for text in texts]
    if generation.get("output_scores"):
        scores = result.sequences_scores.tolist()
    else:
        ends = model.generation_config.eos_token_id
        real = _up_to_the_end(tokens[:, 1:], [ends] if isinstance(ends, int) else list(ends or []))
        scores = _scores(torch.stack(result.logits, dim=1), tokens[:, 1:].masked_fill(~real, -100), length_penalty)
    return [Translation(text, score) for text, score in zip(texts, scores, strict=True)]


def _up_to_the_end(tokens: Tensor, ends: list[int]) -> Tensor:
    """True for the tokens `[B, T]` up to and including the first end token."""
    ended = torch.isin(tokens, torch.tensor(ends, device=tokens.device)).long()
    return ended.cumsum(dim=1) - ended == 0


def _scores(logits: Tensor, labels: Tensor, length_penalty: float) -> list[float]:
    """`logits` `[B, T, V]`, `labels` `[B, T]`, -100 where there is none."""
    real = labels != -100
    chances = logits.float().log_softmax(dim=-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (chances.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1) ** length_penalty).tolist()


class _evaluating:
    """The model in evaluation mode, and back in the mode it was in."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.was_training = model, model.training

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self.was_training)
