"""Which translations a batch compares: samples, the reference and the greedy translation, with a scripted sampler."""

from types import SimpleNamespace
from typing import Any

import torch

from hf_capsule_mt.training.objectives.arguments import GREEDY, MINIMUM_RISK
from hf_capsule_mt.training.objectives.candidate_batch import draw_candidates

PAD, END = 0, 2
SOURCE = {
    "input_ids": torch.tensor([[5, 6, END], [7, END, PAD]]),
    "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
}
LABELS = torch.tensor([[8, 9, END], [8, END, -100]])
MODEL: Any = SimpleNamespace(
    config=SimpleNamespace(pad_token_id=PAD, eos_token_id=END),
    generation_config=SimpleNamespace(pad_token_id=PAD, eos_token_id=END),
)


class Scripted:
    """Three samples a sentence: one twice, one cut off. The first sentence alone samples the greedy one."""

    def samples(
        self, model: Any, encoded: Any, mask: Any, limits: list[int], numbers: Any
    ) -> list[list[tuple[int, ...]]]:
        self.limits = limits
        return [[(8, END), (8, END), (9, 9)], [(9, END), (8, END), (9, END)]]

    def greedy(self, model: Any, encoded: Any, mask: Any, limits: list[int]) -> list[tuple[int, ...]]:
        return [(8, END), (8, 8, END)]


def drawn(**options: Any) -> tuple[Any, Scripted]:
    defaults = {"seed": 1, "samples_per_sentence": 3, "max_sample_length": None, "include_reference": True}
    args = SimpleNamespace(**{**defaults, "objective": "policy_gradient", "reward_baseline": GREEDY, **options})
    sampler: Any = Scripted()
    return draw_candidates(MODEL, None, SOURCE, LABELS, args, sampler, 4), sampler


def test_a_greedy_baseline_counts_no_sample():
    batch, sampler = drawn()
    assert batch.candidates.words == [(8, END), (9, 9), (9, END), (8, END), (8, 8, END)]
    assert batch.candidates.counts == [2, 1, 2, 1, 0] and batch.candidates.sentence_of == [0, 0, 1, 1, 1]
    assert batch.greedy == [0, 4] and batch.learned == [0, 1, 2, 3], "the loss leaves out what was not sampled"
    assert (batch.cut, batch.distinct) == (1, 4)
    assert sampler.limits == [15, 13], "10 more than one and a half times the reference"


def test_a_reference_is_learned_without_being_sampled():
    batch, _ = drawn(objective=MINIMUM_RISK)
    assert batch.candidates.words == [(8, END), (9, 9), (8, 9, END), (9, END), (8, END)]
    assert batch.candidates.counts == [2, 1, 0, 2, 1], "the reference of the second sentence is one of its samples"
    assert batch.greedy == [] and batch.learned == [0, 1, 2, 3, 4] and (batch.cut, batch.distinct) == (1, 4)
    without, _ = drawn(objective=MINIMUM_RISK, include_reference=False)
    assert without.candidates.words == [(8, END), (9, 9), (9, END), (8, END)]


def test_a_limit_of_the_arguments_holds_for_all_sentences():
    assert drawn(max_sample_length=7)[1].limits == [7, 7]
