"""The objective of a run over whole translations: samples, rewards and the loss of a batch.

1. The encoder reads the batch once. Its output serves everything that follows.
2. All samples of the sentences are drawn, without gradients.
3. Their rewards are asked for. Worker processes compute them during the next step.
4. One pass of the decoder, without dropout as in sampling, gives the log-probabilities of all candidates, and one the
   loss of the references.
5. The rewards arrive, and the losses are mixed.

Legend: `B` sentences of a batch, `N` candidates of all of them, `S` source and `T` target positions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import TrainerCallback

from hf_capsule_mt.training.objectives.arguments import LIKELIHOOD
from hf_capsule_mt.training.objectives.batch_losses import batch_losses, learned_log_probabilities
from hf_capsule_mt.training.objectives.candidate_batch import (
    batch_to_score,
    draw_candidates,
    has_one_candidate,
    source_of,
)
from hf_capsule_mt.training.objectives.model_access import decoder_without_dropout, encode, padding_token
from hf_capsule_mt.training.objectives.random_numbers import step_number
from hf_capsule_mt.training.objectives.recorded_settings import (
    has_other_reward,
    objective_settings,
    recorded_run,
    warn_of_changes,
)
from hf_capsule_mt.training.objectives.run_reward import load_reward, named_reward
from hf_capsule_mt.training.objectives.sampling import Sampler
from hf_capsule_mt.training.objectives.source_ends import source_ends
from hf_capsule_mt.training.objectives.state_files import save_state
from hf_capsule_mt.training.objectives.statistics import RewardStatistics
from hf_capsule_mt.training.rewards.reward import Reward
from hf_capsule_mt.training.training_loss import Share

Likelihood = Callable[[dict[str, Any]], tuple[Tensor, Any]]  # from inputs of the model to its loss and its outputs


class SequenceObjective(TrainerCallback):
    """Computes the loss of a batch under `minimum_risk` or `policy_gradient`. See [`ObjectiveArguments`].

    `reward` is an object of the caller, which the caller closes. None makes the reward that the arguments name, at the
    beginning of each training, for the model that trains, and closes it at the end.
    """

    def __init__(self, args: Any, accelerator: Accelerator, reward: Reward | None = None) -> None:
        self.args, self.accelerator = args, accelerator
        self.reward, self._makes_reward = reward, reward is None
        self.statistics = RewardStatistics(accelerator)
        self.sampler = Sampler(getattr(args, "max_tokens_per_batch", None))
        self.sentences: Tensor | int | None = None  # of the step; None where each batch has its own mean
        self._checkpoint: Path | None = None
        self._has_other_reward = False  # than the checkpoint
        self._source_ends: list[int] | None = None  # None: sources end like translations
        self._tokenizer: Any = None
        self._pairs: Any = None

    @property
    def is_on(self) -> bool:
        """Whether the run has such an objective."""
        return getattr(self.args, "objective", LIKELIHOOD) != LIKELIHOOD

    def begin(self, checkpoint: Path | None, tokenizer: Any, pairs: Any) -> None:
        """`train` is called on `pairs`; from `checkpoint` if it is resumed."""
        self._checkpoint, self._tokenizer, self._pairs = checkpoint, tokenizer, pairs

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """The steps begin, with the model of `model_init`; for `auto_find_batch_size` again with each batch size."""
        recorded = {} if self._checkpoint is None else recorded_run(self._checkpoint)
        before, now = recorded.get("objective"), self._settings
        self._has_other_reward = before is not None and has_other_reward(before, now)
        if self._checkpoint is not None and before is not None:
            warn_of_changes(self._checkpoint, before, now)
        if not self.is_on:
            return
        self.statistics.reset()
        self._source_ends = source_ends(self._pairs, model)
        if self._makes_reward:
            self._close_reward()
            self.reward = named_reward(self.args, self._tokenizer, model, self._pairs)
        if self._checkpoint is None or self.reward is None or self._has_other_reward:
            return
        load_reward(self.reward, self._checkpoint, self.args.process_index)
        if "rewards" in recorded:
            self.statistics.load_shared(recorded["rewards"])

    @property
    def _settings(self) -> dict[str, Any]:
        return objective_settings(self.args, None if self._makes_reward else self.reward)

    def sums(self) -> dict[str, Any]:
        """What a checkpoint keeps for this process beside the state of the reward."""
        return {"objective": self._settings} | ({"rewards": self.statistics.state()} if self.is_on else {})

    def load_sums(self, sums: dict[str, Any]) -> None:
        """Go on from the sums of this process in the checkpoint."""
        if self.is_on and "rewards" in sums and not self._has_other_reward:
            self.statistics.load(sums["rewards"])

    def end(self) -> None:
        """Training has ended."""
        self._tokenizer = self._pairs = None
        if self._makes_reward:
            self._close_reward()

    def _close_reward(self) -> None:
        if self.reward is not None:
            self.reward.close()
            self.reward = None

    def count_sentences(self, batches: list[dict[str, Any]], tokens: Any) -> None:
        """Note how many sentences the batches of a step have, in all processes if the `tokens` are those of all."""
        self.sentences = None
        if self.is_on and tokens is not None:
            self.sentences = sum(len(batch["labels"]) for batch in batches)
            if self.args.average_tokens_across_devices and self.args.world_size > 1:
                count = torch.tensor([self.sentences], device=self.args.device)
                self.sentences = self.accelerator.gather(count).sum()

    def __call__(
        self, model: nn.Module, inputs: dict[str, Any], step: int, share: Share, likelihood: Likelihood
    ) -> tuple[Tensor, Any]:
        """The loss, and the outputs of the model for the references; empty if these have no weight."""
        assert self.reward is not None
        weight = self.args.likelihood_weight
        if self.args.likelihood_steps:
            if step_number(self.args.seed, step) < weight:
                loss, outputs = likelihood(inputs)
                self.statistics.add_likelihood(loss.detach() / share.batches)
                return loss, outputs
            weight = 0.0
        bare: Any = self.accelerator.unwrap_model(model)
        labels, source = inputs["labels"], source_of(inputs, padding_token(bare))
        mask = source["attention_mask"]
        with self.accelerator.autocast():
            encoded = encode(bare, source)
            batch = draw_candidates(bare, encoded, source, labels, self.args, self.sampler, step)
            self.statistics.add(cut=batch.cut, distinct=batch.distinct)
            rewards_of = self.reward.submit(batch_to_score(bare, source, labels, batch.candidates, self._source_ends))
            # By reports, PyTorch before pull request 165068 keeps the weights that sampling has cast without gradients
            # (pytorch#112583). PyTorch 2.13 does not: the test passes without this line. No older one was tried.
            torch.clear_autocast_cache()
            # Distributed training gets ready for the gradients in the last call of the wrapped model.
            with decoder_without_dropout(bare):
                log_probabilities = learned_log_probabilities(
                    bare if weight else model, bare, encoded, mask, batch, self.sampler.budget
                )
        loss, outputs = torch.zeros((), device=labels.device), {}
        if weight:
            kept = {name: value for name, value in inputs.items() if name != "input_ids"}
            loss, outputs = likelihood({**kept, "attention_mask": mask, "encoder_outputs": encoded})
            self.statistics.add_likelihood(loss.detach() / share.batches)
        rewards = torch.tensor(rewards_of(), dtype=log_probabilities.dtype, device=labels.device)
        losses = batch_losses(self.args, self.statistics, batch, rewards, log_probabilities, len(labels))
        count = len(labels) if self.sentences is None else self.sentences
        mean = losses.sum() / count * share.processes
        return weight * loss + (1 - weight) * mean, outputs

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.is_on or self.reward is None:
            return
        self.statistics.finish_step(self.reward.after_step)
        if self.statistics.equal_steps >= args.equal_reward_steps:
            equal = "every reward was the running mean"
            if not has_one_candidate(args):
                equal = "no sentence had samples with different rewards"
            raise ValueError(
                f"equal_reward_steps={args.equal_reward_steps}: in the last {self.statistics.equal_steps} steps, up "
                f"to step {state.global_step}, {equal}, so nothing is learned from them. The reward "
                f"{self.reward.name!r} gives all samples the same score. This happens with an untrained model: start "
                "from a trained one. Or all samples of a sentence are equal: then distinct_samples in the log is low, "
                "and training on rewards has reached its end"
            )

    def add_to(self, logs: dict[str, float]) -> None:
        """Add to a log what the rewards were like since the last one."""
        if self.is_on:
            self.statistics.add_to(logs)

    def save(self, folder: Path) -> None:
        """Write the reward's state of this process into a checkpoint."""
        if self.is_on and self.reward is not None:
            save_state(self.reward.state(), folder, self.args.process_index)
