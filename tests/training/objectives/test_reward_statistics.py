"""What the log says about rewards, the running mean, and when all rewards count as equal."""

import json
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from hf_capsule_mt.training.objectives.statistics import DECAY, RewardStatistics


def statistics() -> RewardStatistics:
    return RewardStatistics(Accelerator(cpu=True))


def step(kept: RewardStatistics, *rewards: float, counts: Any = None, differ: bool = True) -> None:
    kept.add_rewards(torch.tensor(rewards), torch.tensor(counts or [1] * len(rewards)), differ)
    kept.finish_step(dict)


def test_only_steps_without_a_difference_count_as_equal():
    kept, seen = statistics(), []
    for differ in (False, False, True, False, False):
        step(kept, 0.5, 0.75, differ=differ)
        seen.append(kept.equal_steps)
    assert seen == [1, 2, 0, 1, 2]
    kept.finish_step(dict)  # of references alone
    assert kept.equal_steps == 2
    kept.add_rewards(torch.tensor([0.5]), torch.tensor([1]), True)  # the first of two accumulated batches
    step(kept, 0.5, differ=False)
    assert kept.equal_steps == 0


def test_a_difference_in_one_of_two_processes_counts(monkeypatch: pytest.MonkeyPatch):
    kept = statistics()
    others = torch.tensor([[0.75, 1.0, 0.0]], dtype=torch.float64)
    monkeypatch.setattr(kept, "_gathered", lambda row: torch.cat([row, others]))
    step(kept, 0.25, differ=False)
    assert kept.equal_steps == 1 and kept.running_mean() == pytest.approx(0.5)
    step(kept, 0.25, differ=True)
    assert kept.equal_steps == 0


def test_a_candidate_that_was_not_sampled_is_not_in_the_mean():
    """The reference, or the greedy translation."""
    kept = statistics()
    step(kept, 0.5, 1.0, counts=[2, 0])
    assert kept.running_mean() == pytest.approx(0.5)


def test_the_running_mean_prefers_late_steps_and_has_no_start():
    kept = statistics()
    assert kept.running_mean() is None
    step(kept, 0.2, 0.8, counts=[3, 1])
    assert kept.running_mean() == pytest.approx(0.35)
    step(kept, 1.0)
    assert kept.running_mean() == pytest.approx((DECAY * 0.35 + 1.0) / (DECAY + 1.0))


def test_the_log_has_means_over_samples_and_begins_again():
    kept, logs = statistics(), {"loss": 1.0}
    kept.add(entropy=30.0, tokens=20.0, distinct=3, cut=1)
    kept.add_likelihood(3.0)
    kept.add_likelihood(1.0)  # accumulated in one step
    kept.add_rewards(torch.tensor([0.0, 1.0, 0.5]), torch.tensor([1, 1, 2]), True)
    kept.finish_step(lambda: {"error": 4.0})
    step(kept, 0.5)
    kept.add_to(logs)
    deviation = pytest.approx((0.5**2 * 2 / 5) ** 0.5)
    assert (logs["reward"], logs["reward_deviation"]) == (pytest.approx(0.5), deviation)
    assert (logs["sample_entropy"], logs["distinct_samples"], logs["cut_samples"]) == (1.5, 0.6, 0.2)
    assert (logs["likelihood_loss"], logs["error"]) == (4.0, 4.0) and "expected_reward" not in logs
    again = {"loss": 1.0}
    kept.add_to(again)
    assert again == {"loss": 1.0}


def test_the_state_is_json_and_goes_on_exactly():
    kept, resumed = statistics(), statistics()
    step(kept, 0.1, 0.7)
    kept.add(entropy=1 / 3)
    resumed.load(json.loads(json.dumps(kept.state())))
    for one in (kept, resumed):
        step(one, 0.7)
    assert resumed.state() == kept.state()


def test_another_process_goes_on_with_what_all_knew():
    """The running mean and the count of equal steps; not with sums of its own."""
    kept, resumed = statistics(), statistics()
    step(kept, 0.1, 0.7, differ=False)
    resumed.load_shared(json.loads(json.dumps(kept.state())))
    assert resumed.running_mean() == kept.running_mean() == pytest.approx(0.4) and resumed.equal_steps == 1
    assert resumed.sums["samples"] == 0.0 and kept.sums["samples"] == 2.0
