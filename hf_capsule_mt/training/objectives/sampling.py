"""Samples from the model's own distribution, and greedy translations: with the cache, batched by tokens.

The distribution is the model's softmax, with temperature 1 and without top-k or top-p: other settings would estimate
another gradient. The decoder has no dropout. So all words of a sample come from one distribution; with dropout each
would come from another one. The encoder's output is that of the training step, with its dropout: the log-probabilities
of the samples are computed from the same output.

A sample that reaches its length limit stops at it, without an end token. Together with the translations that end
before, such prefixes are a distribution too. Random numbers are those of `random_numbers.py`.

Legend: `B` sentences, `n` samples of each, `R` rows of a block, `L` most words of a block, `V` target vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import LogitsProcessor, LogitsProcessorList
from transformers.utils import ModelOutput

from hf_capsule_mt.modeling.translation_loop import Batch, length_batches, translated_batches
from hf_capsule_mt.training.objectives.candidates import Words
from hf_capsule_mt.training.objectives.model_access import (
    end_tokens,
    impossible_word,
    most_positions,
    padding_token,
    repeated,
    start_token,
)


class DrawnWords(LogitsProcessor):
    """Draws the next word of each row, and leaves only this word possible: greedy search then returns samples.

    A word is drawn by one number of [0, 1): it is the first whose cumulative probability exceeds the number. `numbers`
    `[R, L]`; None takes the most probable words. From its `limits` `[R]` on, a row gets an end token, which is cut.
    """

    def __init__(self, numbers: Tensor | None, limits: Tensor, impossible: int | None, end: int | None) -> None:
        self.numbers, self.limits, self.impossible, self.end = numbers, limits, impossible, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`input_ids` `[R, 1 + words so far]`, `scores` `[R, V]`."""
        place = input_ids.shape[1] - 1
        if self.impossible is not None:
            scores[:, self.impossible] = -torch.inf
        if self.numbers is not None:
            words = drawn(scores, self.numbers[:, place])
        else:
            words = scores.argmax(dim=-1)
        if self.end is not None:
            words = torch.where(self.limits > place, words, self.end)
        return torch.full_like(scores, -torch.inf).scatter_(1, words.unsqueeze(1), 0.0)


def drawn(scores: Tensor, numbers: Tensor) -> Tensor:
    """Words `[R]` of the softmax of `scores` `[R, V]`, chosen by `numbers` `[R]`."""
    cumulative = scores.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    targets = numbers.to(torch.float64).unsqueeze(1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp(max=scores.shape[1] - 1)


class Sampler:
    """Samples translations of encoded sources. `budget` limits the tokens of a block, source and target together."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget

    def samples(
        self, model: Any, encoded: ModelOutput, attention_mask: Tensor, limits: Sequence[int], numbers: list[Tensor]
    ) -> list[list[Words]]:
        """`n` samples of each sentence. `limits` `[B]` in words, `numbers` `[n, at least the limit]` a sentence."""
        count = len(numbers[0])
        rows = [sentence for sentence in range(len(limits)) for _ in range(count)]
        drawn_rows = self._translate(model, encoded, attention_mask, rows, limits, [*torch.cat(numbers_of(numbers))])
        return [drawn_rows[start : start + count] for start in range(0, len(rows), count)]

    def greedy(self, model: Any, encoded: ModelOutput, attention_mask: Tensor, limits: Sequence[int]) -> list[Words]:
        """The greedy translation of each sentence."""
        return self._translate(model, encoded, attention_mask, range(len(limits)), limits, None)

    @torch.no_grad()
    def _translate(
        self,
        model: Any,
        encoded: ModelOutput,
        attention_mask: Tensor,
        rows: Sequence[int],
        limits: Sequence[int],
        numbers: list[Tensor] | None,
    ) -> list[Words]:
        """A translation of the sentence of each row; `numbers` has one tensor a row."""
        most, ends = most_positions(model), end_tokens(model)
        row_limits = [limits[row] if most is None else min(limits[row], most) for row in rows]
        settings = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max(row_limits, default=1),  # each block has its own, see `_blocks`
            eos_token_id=ends or None,
            pad_token_id=padding_token(model),
            decoder_start_token_id=start_token(model),
        )
        blocks = self._blocks(model, encoded, attention_mask, rows, row_limits, numbers)
        translations: list[Words] = [()] * len(rows)
        with only_settings(model, settings):
            for place, words in translated_batches(model, blocks, {}):
                translations[place] = cut(words[0, 1:].tolist(), row_limits[place], ends)
        return translations

    def _blocks(
        self,
        model: Any,
        encoded: ModelOutput,
        attention_mask: Tensor,
        rows: Sequence[int],
        row_limits: list[int],
        numbers: list[Tensor] | None,
    ) -> Iterator[Batch]:
        """The rows in blocks of similar length, each with what draws its words, and with its own limit."""
        device, source = attention_mask.device, attention_mask.shape[1]
        impossible, ends = impossible_word(model), end_tokens(model)
        for block in length_batches([source + limit for limit in row_limits], max_tokens=self.budget):
            sentences = torch.tensor([rows[place] for place in block], device=device)
            limits = [row_limits[place] for place in block]
            draw = DrawnWords(
                None if numbers is None else torch.stack([numbers[place] for place in block]).to(device),
                torch.tensor(limits, device=device),
                impossible,
                ends[0] if ends else None,
            )
            inputs = {
                "encoder_outputs": repeated(encoded, sentences),
                "attention_mask": attention_mask.index_select(0, sentences),
                "logits_processor": LogitsProcessorList([draw]),
                "max_new_tokens": max(limits),
            }
            yield block, inputs, source


def numbers_of(numbers: list[Tensor]) -> list[Tensor]:
    """The numbers of all sentences, padded to the same number of columns. Nothing reads the padding."""
    longest = max(tensor.shape[1] for tensor in numbers)
    return [torch.nn.functional.pad(tensor, (0, longest - tensor.shape[1])) for tensor in numbers]


def cut(words: list[int], limit: int, ends: Sequence[int]) -> Words:
    """The words of a row up to its end token, or up to its limit."""
    first = next((place for place, word in enumerate(words[:limit]) if word in ends), None)
    return tuple(words[:limit] if first is None else words[: first + 1])


@contextmanager
def only_settings(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """In this block `generate` uses only `settings`. It ignores the model's own forced end, penalties and beams."""
    before, model.generation_config = model.generation_config, settings
    try:
        yield
    finally:
        model.generation_config = before
