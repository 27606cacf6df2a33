"""The samples of each sentence, in the order of the sentences, and their scores in the order of the samples."""

from collections.abc import Callable, Sequence
from typing import Any

from hf_capsule_mt.training.rewards.reward import SampledBatch


def samples_by_sentence(batch: SampledBatch) -> list[list[int]]:
    """For each sentence the numbers of its samples. Raises `ValueError` for lists that do not fit together."""
    sentences = len(batch.sources)
    problems = []
    if len(batch.references) != sentences:
        problems.append(f"{sentences} sources and {len(batch.references)} references: the numbers must be equal")
    if len(batch.sentence_of) != len(batch.samples):
        problems.append(
            f"{len(batch.samples)} samples and {len(batch.sentence_of)} in sentence_of: the numbers must be equal"
        )
    outside = [index for index in batch.sentence_of if not 0 <= index < sentences]
    if outside:
        problems.append(f"sentence_of has {outside[0]}: must be 0 to {sentences - 1}, a sentence of the batch")
    if problems:
        raise ValueError("\n".join(problems))
    numbers: list[list[int]] = [[] for _ in range(sentences)]
    for sample, sentence in enumerate(batch.sentence_of):
        numbers[sentence].append(sample)
    return numbers


def in_sample_order(
    wait: Callable[[], Sequence[Sequence[Any]]], numbers: Sequence[Sequence[int]]
) -> Callable[[], list[Any]]:
    """A function that waits for the scores of each sentence and returns one for each sample."""

    def scores() -> list[Any]:
        result: list[Any] = [None] * sum(map(len, numbers))
        for places, values in zip(numbers, wait(), strict=True):
            for place, value in zip(places, values, strict=True):
                result[place] = value
        return result

    return scores
