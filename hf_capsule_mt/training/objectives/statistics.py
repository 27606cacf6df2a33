"""Statistics of the rewards of a run: for its log and the running mean, and to stop if nothing can be learned.

| key of the log | what it is |
| --- | --- |
| `reward`, `reward_deviation` | mean and standard deviation over the samples |
| `expected_reward` | of `minimum_risk`: the mean under `Q` |
| `sample_entropy` | mean negative log-probability of a token of the samples |
| `distinct_samples` | different samples of a sentence, as a share of all |
| `cut_samples` | the share of the samples that reached their length limit |
| `likelihood_loss` | the loss of the references, where it has a weight |
| `estimator_loss`, `…_error`, `…_cdr` | of the estimator that `learned_cdr` trains, in this process alone |
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

DECAY = 0.99  # of the running mean, in a step
SUMS: tuple[str, ...] = ("samples", "reward", "squared_reward", "entropy", "tokens", "distinct", "cut")
SUMS += ("sentences", "expected", "likelihood", "likelihood_steps")
OF_THIS_PROCESS, OF_ALL_PROCESSES = ("sums", "learned"), ("mean", "mean_weight", "equal_steps")


class RewardStatistics:
    """Sums of this process since the last log, and what all processes know about earlier steps."""

    # Of the step that runs, in this process.
    _has_references: bool
    _total: float
    _samples: float
    _some_differ: bool

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.reset()

    def reset(self) -> None:
        """Forget everything of an earlier run."""
        self.sums = dict.fromkeys(SUMS, 0.0)
        self.learned: dict[str, list[float]] = {}  # sum and number of what the reward reported, by name
        self._begin_step()
        self.mean, self.mean_weight = 0.0, 0.0  # of the rewards of earlier steps
        self.equal_steps = 0  # last steps in which no rewards differed

    def state(self) -> dict[str, Any]:
        """For JSON, in which floats are exact."""
        return {name: getattr(self, name) for name in (*OF_THIS_PROCESS, *OF_ALL_PROCESSES)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned in this process."""
        for name in OF_THIS_PROCESS:
            setattr(self, name, state[name])
        self.load_shared(state)

    def load_shared(self, state: dict[str, Any]) -> None:
        """Go on from what all processes knew, by what `state` returned in any of them."""
        for name in OF_ALL_PROCESSES:
            setattr(self, name, state[name])

    def add(self, **values: Tensor | float) -> None:
        """Add to the sums of their names."""
        for name, value in values.items():
            self.sums[name] += float(value)

    def add_rewards(self, rewards: Tensor, counts: Tensor, some_differ: bool) -> None:
        """Add rewards and counts of a batch's candidates, both `[N]`. A candidate with the count 0 is not a sample.

        `some_differ` says whether something is learned from them: whether a reward differs from what it is compared
        with, the other rewards of its sentence or the running mean.
        """
        counts, rewards = counts.double(), rewards.double()
        total, samples = float((counts * rewards).sum()), float(counts.sum())
        self.add(samples=samples, reward=total, squared_reward=(counts * rewards.square()).sum())
        self._total, self._samples = self._total + total, self._samples + samples
        self._some_differ |= some_differ

    def running_mean(self) -> float | None:
        """The mean reward of earlier steps, in which later ones count more; None before the first step ends."""
        return self.mean / self.mean_weight if self.mean_weight else None

    def add_likelihood(self, loss: Tensor | float) -> None:
        """Add the loss of a batch of references."""
        self.add(likelihood=loss)
        self._has_references = True

    def finish_step(self, learn: Callable[[], dict[str, float]]) -> None:
        """Take in a step of all processes. In one with samples, `learn` lets the reward learn."""
        step = torch.tensor([[self._total, self._samples, self._some_differ]], dtype=torch.float64)
        step = self._gathered(step)
        samples, total = float(step[:, 1].sum()), float(step[:, 0].sum())
        if samples:
            self.mean = DECAY * self.mean + (1 - DECAY) * total / samples
            self.mean_weight = DECAY * self.mean_weight + (1 - DECAY)
            self.equal_steps = 0 if step[:, 2].any() else self.equal_steps + 1
            for name, value in learn().items():
                total_before, count = self.learned.get(name, (0.0, 0))
                self.learned[name] = [total_before + value, count + 1]
        self.add(likelihood_steps=self._has_references)
        self._begin_step()

    def add_to(self, logs: dict[str, float]) -> None:
        """Add to a log the means of all processes since the last one."""
        if "loss" not in logs:
            return
        row = torch.tensor([[self.sums[name] for name in SUMS]], dtype=torch.float64)
        sums = dict(zip(SUMS, self._gathered(row).sum(dim=0).tolist(), strict=True))
        if samples := sums["samples"]:
            mean = sums["reward"] / samples
            logs["reward"] = mean
            logs["reward_deviation"] = math.sqrt(max(0.0, sums["squared_reward"] / samples - mean**2))
            if sums["sentences"]:
                logs["expected_reward"] = sums["expected"] / sums["sentences"]
            logs["sample_entropy"] = sums["entropy"] / max(1.0, sums["tokens"])
            logs["distinct_samples"], logs["cut_samples"] = sums["distinct"] / samples, sums["cut"] / samples
        if steps := sums["likelihood_steps"]:
            logs["likelihood_loss"] = sums["likelihood"] / steps
        for name, (total, count) in self.learned.items():
            logs[name] = total / count
        self.sums, self.learned = dict.fromkeys(SUMS, 0.0), {}

    def _begin_step(self) -> None:
        self._has_references, self._total, self._samples, self._some_differ = False, 0.0, 0.0, False

    def _gathered(self, row: Tensor) -> Tensor:
        """A row for each process."""
        if self.accelerator.num_processes == 1:
            return row
        device = self.accelerator.device
        exact = row if device.type != "mps" else row.float()
        return self.accelerator.gather(exact.to(device)).cpu()
