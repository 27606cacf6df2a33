"""Greedy and beam search with little around the model's own arithmetic, for decoders whose steps are short.

`generate()` prepares every call as always and hands over here where the search is one that these loops know; they give
the tokens that the loops of Transformers give. Everything else (sampling, streaming, scores to be returned, prefixes,
other stopping criteria, accelerators) is left to Transformers.

Legend: `B` sentences, `n` beams, `R` rows, which are sentences or `B * n` beams; `K` candidates of a sentence, `V`
target vocabulary, `L` longest target.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.generation import (
    EosTokenCriteria,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
)

KNOWN_ARGUMENTS = {"encoder_outputs", "attention_mask", "use_cache", "past_key_values"}
# What a class of a user's may put its own in the place of.
PREPARATION = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
IMPOSSIBLE = -1e8  # below any score of words that are allowed


class Steps(Protocol):
    """A decoder that has read its source and goes on by one word a call."""

    def __call__(self, words: Tensor) -> Tensor:
        """The last words `[R]`; returns the logits `[R, V]` of the next ones, in float32 and the caller's own."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, `[R]`; rows may be left out and repeated."""


class Limits(NamedTuple):
    """What ends a translation."""

    max_length: int
    ends: Tensor | None  # [E], the end tokens
    pad: int

    def ended(self, words: Tensor) -> Tensor:
        """`words` `[…]`: true for an end token."""
        if self.ends is None:
            return torch.zeros_like(words, dtype=torch.bool)
        return words == self.ends if len(self.ends) == 1 else torch.isin(words, self.ends)


def limits_of(generation_config: Any) -> Limits:
    ends, pad = generation_config._eos_token_tensor, generation_config._pad_token_tensor
    return Limits(generation_config.max_length, ends, -1 if pad is None else int(pad))


Processor = Callable[[Any, Any], Tensor]  # of the sequences [R, L] and the scores [R, V]


class EndsLater:
    """No end token in a sequence shorter than `length`; Transformers looks for the end among all words instead."""

    def __init__(self, length: int, ends: Tensor) -> None:
        self.length, self.ends = length, ends.tolist()

    def __call__(self, sequences: Tensor, scores: Tensor) -> Tensor:
        if sequences.shape[1] < self.length:
            for end in self.ends:
                if end < scores.shape[1]:
                    scores[:, end] = -torch.inf
        return scores


def prepared(processors: Iterable[Any]) -> list[Processor]:
    """Transformers' processors of scores, the ones that are always there in a cheaper form."""
    found: list[Processor] = []
    for processor in processors:
        if type(processor) is MinLengthLogitsProcessor:
            found.append(EndsLater(processor.min_length, processor.eos_token_id))
        elif type(processor) is MinNewTokensLengthLogitsProcessor:
            least = processor.prompt_length_to_skip + processor.min_new_tokens
            found.append(EndsLater(least, processor.eos_token_id))
        elif len(inspect.signature(processor.__call__).parameters) == 2:
            found.append(processor)
        else:
            found.append(LogitsProcessorList([processor]))  # which says what is missing
    return found


def greedy_search(steps: Steps, start: Tensor, processors: list[Processor], limits: Limits) -> Tensor:
    """From the start tokens `[B, 1]` to the translations `[B, L]`."""
    sequences = start.new_full((len(start), limits.max_length), limits.pad)
    sequences[:, :1] = start
    words, finished = start[:, 0], torch.zeros(len(start), dtype=torch.bool)
    for length in range(1, limits.max_length):
        scores = steps(words)
        for process in processors:
            scores = process(sequences[:, :length], scores)
        words = scores.argmax(dim=-1)
        if limits.ends is not None:
            words.masked_fill_(finished, limits.pad)
            finished |= limits.ended(words)
        sequences[:, length] = words
        if limits.ends is not None and finished.all():
            return sequences[:, : length + 1]
    return sequences


class Finished:
    """The best `n` translations of every sentence that have ended, as far as there are any.

    Scores are put in order by the operations that Transformers uses, so that equal ones come in its order.
    """

    def __init__(self, count: int, beams: int) -> None:
        self.beams = beams
        self.scores = torch.full((count, beams), -1e9)
        self.sequences: list[list[Tensor | None]] = [[None] * beams for _ in range(count)]

    def full(self, sentence: int) -> bool:
        return all(sequence is not None for sequence in self.sequences[sentence])

    def all_full(self) -> bool:
        return all(map(self.full, range(len(self.sequences))))

    def add(self, scores: Tensor, ended: Tensor, closed: list[bool], sequences: Tensor) -> None:
        """Candidates `sequences` `[B, K, L]` with `scores` `[B, K]`; those in `ended` `[B, K]` have ended and are
        kept if they are good enough, except where a sentence is `closed`."""
        ended = ended & ~torch.tensor(closed).unsqueeze(1)
        merged = torch.cat([self.scores, scores + ~ended * -1e9], dim=1)
        self.scores, places = merged.topk(self.beams)
        found: list[list[Tensor | None]] = []
        for old, new, real, chosen in zip(self.sequences, sequences, ended.tolist(), places.tolist(), strict=True):
            every = [*old, *(sequence if is_real else None for sequence, is_real in zip(new, real, strict=True))]
            found.append([every[place] for place in chosen])
        self.sequences = found


def beam_search(
    steps: Steps, start: Tensor, processors: list[Processor], limits: Limits, settings: Any
) -> Tensor | None:
    """From the start tokens `[B * n, 1]` to the translations `[B * num_return_sequences, L]`.

    None where words are forbidden so thoroughly that a sentence has fewer than `n` continuations: what is returned
    then depends on how Transformers fills the gaps.
    """
    beams, penalty, early = settings.num_beams, settings.length_penalty, settings.early_stopping
    count = len(start) // beams
    candidates = max(2, 1 + (0 if limits.ends is None else len(limits.ends))) * beams
    offsets = torch.arange(count).unsqueeze(1) * beams  # [B, 1]
    running = start.new_full((len(start), limits.max_length), limits.pad)
    running[:, :1] = start
    scores = torch.zeros(count, beams)
    scores[:, 1:] = -1e9  # all beams of a sentence are alike at first
    finished = Finished(count, beams)
    hopeful = [True] * count
    for length in range(1, limits.max_length):
        log_probs = torch.log_softmax(steps(running[:, length - 1]), dim=-1)  # [R, V]
        for process in processors:
            log_probs = process(running[:, :length], log_probs)
        vocabulary = log_probs.shape[-1]
        total = (log_probs.view(count, beams, -1) + scores.unsqueeze(-1)).view(count, -1)
        if total.shape[1] < candidates:
            return None
        best, places = total.topk(candidates)  # [B, K]
        rows, words = places // vocabulary + offsets, places % vocabulary
        last = length + 1 == limits.max_length
        ended = torch.ones_like(words, dtype=torch.bool) if last else limits.ended(words)
        ending = ended.clone()
        ending[:, beams:] = False  # these only take the places of those that end
        if ending.any():
            if best[ending].min() < IMPOSSIBLE:
                return None
            closed = [not hope or (early is True and finished.full(row)) for row, hope in enumerate(hopeful)]
            sequences = torch.cat([running[rows][:, :, :length], words.unsqueeze(-1)], dim=-1)  # [B, K, L]
            finished.add(best / length**penalty, ending, closed, sequences)
        if last:
            break
        going_on = best.masked_fill(ended, -torch.inf).topk(beams).indices
        scores = best.gather(1, going_on)
        if scores.min() < IMPOSSIBLE:
            return None
        longest = limits.max_length - 1 if early == "never" and penalty > 0.0 else length
        hopes = (scores[:, 0] / longest**penalty).tolist()
        worst = finished.scores[:, -1].tolist()
        for row in range(count):
            hopeful[row] &= not finished.full(row) or hopes[row] > worst[row]
        if not any(hopeful) or (early is True and finished.all_full()):
            break
        chosen = rows.gather(1, going_on).flatten()
        running = running.index_select(0, chosen)
        running[:, length] = words.gather(1, going_on).flatten()
        steps.select(chosen)
    return _returned(finished.sequences, limits, settings.num_return_sequences)


def _returned(finished: list[list[Tensor | None]], limits: Limits, wanted: int) -> Tensor | None:
    """The best `wanted` translations of every sentence as one tensor."""
    chosen = [sequence for found in finished for sequence in found[:wanted] if sequence is not None]
    if len(chosen) < wanted * len(finished):
        return None
    # Transformers fills up with the end token where the padding token is 0.
    filling = limits.pad if limits.ends is None else limits.pad or int(limits.ends[0])
    return nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=filling)


class LeanSearch:
    """Goes before `GenerationMixin` in the bases of a model whose `lean_steps` makes [`Steps`]."""

    model: Any
    lm_head: Any

    def lean_steps(self, encoder_outputs: Any, attention_mask: Tensor | None) -> Steps | None:
        """The decoder at its start, None where only the model's own `forward` will do."""
        return None

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        if not (generation_config.do_sample or synced_gpus or streamer is not None):
            steps = self._steps_for(input_ids, stopping_criteria, generation_config, model_kwargs)
            if steps is not None:
                return greedy_search(steps, input_ids, prepared(logits_processor), limits_of(generation_config))
        return super()._sample(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer, **model_kwargs
        )

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        if not (generation_config.do_sample or synced_gpus):
            steps = self._steps_for(input_ids, stopping_criteria, generation_config, model_kwargs)
            if steps is not None:
                limits = limits_of(generation_config)
                found = beam_search(steps, input_ids, prepared(logits_processor), limits, generation_config)
                if found is not None:
                    return found
        return super()._beam_search(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, **model_kwargs
        )

    def _steps_for(self, start: Tensor, criteria: Any, settings: Any, model_kwargs: dict[str, Any]) -> Steps | None:
        """The decoder at its start if the call is a plain search on the CPU that nobody looks into."""
        given = {name for name, value in model_kwargs.items() if value is not None}
        cache: Any = model_kwargs.get("past_key_values")
        if (
            start.device.type != "cpu"
            or torch.is_grad_enabled()
            or start.shape[1] != 1
            or not getattr(cache, "internal", False)  # a caller's own is filled, or refused
            or cache.get_seq_length()
            or not given <= KNOWN_ARGUMENTS
            or not _ends_as_configured(criteria, settings)
            or settings.return_dict_in_generate
            or settings.is_assistant
            or settings.prefill_chunk_size is not None
            or settings.low_memory
            or getattr(settings.compile_config, "_compile_all_devices", None)  # compiled steps are asked for
            or any(getattr(type(self), name) is not getattr(GenerationMixin, name) for name in PREPARATION)
            or not as_defined(self, self.model, *self.model.decoder.children(), self.lm_head)
            or not as_defined(self.model.decoder)
        ):
            return None
        return self.lean_steps(model_kwargs["encoder_outputs"], model_kwargs.get("attention_mask"))


def _ends_as_configured(criteria: Any, settings: Any) -> bool:
    """Whether the greatest length and the end tokens of the configuration are all that ends a translation."""
    ends = settings._eos_token_tensor
    lengths = [criterion for criterion in criteria if type(criterion) is MaxLengthCriteria]
    tokens = [criterion for criterion in criteria if type(criterion) is EosTokenCriteria]
    return (
        len(lengths) + len(tokens) == len(criteria)
        and [criterion.max_length for criterion in lengths] == [settings.max_length]
        and len(tokens) == (0 if ends is None else 1)
        and all(torch.equal(criterion.eos_token_id.cpu(), ends.cpu()) for criterion in tokens)
    )


def as_defined(*modules: Any) -> bool:
    """Whether calls of these modules do what their classes say: no dropout, no hook, nothing put over a method."""
    return not any(
        module.training
        or module._forward_hooks
        or module._forward_pre_hooks
        or {"forward", "prepare_inputs_for_generation"} & vars(module).keys()
        for module in modules
    )
