"""Draws the candidates of a batch from the model, and makes the batch that the reward scores.

Legend: `B` sentences of a batch, `N` candidates of all of them, `S` source and `T` target positions.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.utils import ModelOutput

from hf_capsule_mt.training.objectives.arguments import GREEDY, MINIMUM_RISK
from hf_capsule_mt.training.objectives.candidates import Candidates, reference_words, source_words, without_end
from hf_capsule_mt.training.objectives.model_access import end_tokens, padding_token
from hf_capsule_mt.training.objectives.random_numbers import sentence_numbers
from hf_capsule_mt.training.objectives.sampling import Sampler
from hf_capsule_mt.training.rewards.reward import SampledBatch


@dataclass(frozen=True)
class CandidateBatch:
    """The candidates of a batch.

    Args:
        candidates: of all sentences.
        greedy: for each sentence the place of its greedy translation, if that gives the baseline; otherwise empty.
        learned: the places of the candidates that the loss uses. A greedy baseline only needs its reward.
        cut: how many samples reached their length limit.
        distinct: how many candidates were sampled.
    """

    candidates: Candidates
    greedy: list[int]
    learned: list[int]
    cut: int
    distinct: int


def has_greedy_baseline(args: Any) -> bool:
    """Whether the reward of a greedy translation is the baseline."""
    return args.objective != MINIMUM_RISK and args.reward_baseline == GREEDY


def has_one_candidate(args: Any) -> bool:
    """Whether a sentence has one sample alone, which is compared with the running mean."""
    is_compared = args.objective == MINIMUM_RISK or has_greedy_baseline(args)
    return args.samples_per_sentence == 1 and not is_compared


def source_of(inputs: dict[str, Any], padding: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` of a batch, both `[B, S]`."""
    words, mask = inputs["input_ids"], inputs.get("attention_mask")
    return {"input_ids": words, "attention_mask": words.ne(padding).long() if mask is None else mask}


def draw_candidates(
    model: Any,
    encoded: ModelOutput,
    source: dict[str, Tensor],
    labels: Tensor,
    args: Any,
    sampler: Sampler,
    step: int,
) -> CandidateBatch:
    """Samples, references and greedy translations, as the arguments ask for them."""
    mask = source["attention_mask"]
    sources = source_words(source["input_ids"], mask, padding_token(model))
    references = reference_words(labels)
    limits = [args.max_sample_length or math.ceil(1.5 * len(words)) + 10 for words in references]
    numbers = [
        sentence_numbers(args.seed, step, source_row, reference, args.samples_per_sentence, limit)
        for source_row, reference, limit in zip(sources, references, limits, strict=True)
    ]
    samples = sampler.samples(model, encoded, mask, limits, numbers)
    greedy = sampler.greedy(model, encoded, mask, limits) if has_greedy_baseline(args) else []
    candidates, ends = Candidates(), end_tokens(model)
    for sentence, drawn in enumerate(samples):
        for words in drawn:
            candidates.add(sentence, words)
        if args.objective == MINIMUM_RISK and args.include_reference and references[sentence]:
            candidates.add(sentence, tuple(references[sentence]), 0)
    cut = sum(words[-1] not in ends for drawn in samples for words in drawn)
    distinct = sum(count > 0 for count in candidates.counts)
    places = [candidates.add(sentence, words, 0) for sentence, words in enumerate(greedy)]
    learns_from_all = args.objective == MINIMUM_RISK
    learned = [place for place, count in enumerate(candidates.counts) if learns_from_all or count > 0]
    return CandidateBatch(candidates, places, learned, cut, distinct)


def batch_to_score(
    model: Any, source: dict[str, Tensor], labels: Tensor, candidates: Candidates, source_ends: list[int] | None
) -> SampledBatch:
    """What the reward gets. `source_ends` are the end tokens of sources; None: sources end like translations."""
    ends = end_tokens(model)
    of_source = ends if source_ends is None else source_ends
    sources = source_words(source["input_ids"], source["attention_mask"], padding_token(model))
    return SampledBatch(
        sources=[without_end(words, of_source) for words in sources],
        references=[without_end(words, ends) for words in reference_words(labels)],
        samples=[without_end(words, ends) for words in candidates.words],
        sentence_of=candidates.sentence_of,
    )
