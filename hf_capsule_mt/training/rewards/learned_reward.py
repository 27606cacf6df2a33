"""The reward `learned_cdr`: an estimate of CDR that learns beside the model (AOL, Kong et al. 2019)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hf_capsule_mt.training.rewards.coverage_reward import coverage_pool
from hf_capsule_mt.training.rewards.damage import damage_references, random_numbers
from hf_capsule_mt.training.rewards.estimator import CoverageEstimator, estimator_loss, padded
from hf_capsule_mt.training.rewards.lexical_table import LexicalTable
from hf_capsule_mt.training.rewards.reward import SampledBatch
from hf_capsule_mt.training.rewards.sentence_samples import samples_by_sentence
from hf_capsule_mt.training.rewards.settings import RewardSettings
from hf_capsule_mt.training.rewards.token_pairs import TokenPairs

FIRST, LATER = 0, 1  # streams of random numbers: before the first sample, and beside the model
MOMENTS = ("exp_avg", "exp_avg_sq")
Labelled = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]], Callable[[], list[list[Any]]]]


class LearnedCoverageReward:
    """Scores by `CoverageEstimator`, which reads the source and the sample alone.

    It learns first from damaged training pairs, when the first samples come; then in every step from damaged
    references and some samples of this step. Workers compute what these cover while the model trains. Random numbers
    follow from the seed, the step and the process, so that training which is resumed is the same bit for bit.
    """

    def __init__(
        self,
        table: LexicalTable,
        pairs: TokenPairs,
        vocabularies: tuple[int, int],
        settings: RewardSettings,
        device: torch.device | None = None,
    ) -> None:
        self.name, self.settings, self.pairs = "learned_cdr", settings, pairs
        self.device = torch.device("cpu") if device is None else device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            estimator = CoverageEstimator(*vocabularies, settings.estimator_size)
            estimator.begin_with(*table.entries())
        self.estimator = estimator.to(self.device)
        self.optimizer = torch.optim.Adam(self.estimator.parameters(), lr=settings.estimator_learning_rate)
        self.step = 0
        self.is_ready = False
        self.pool = coverage_pool(table, settings, of_tokens=True)
        self._waiting: list[Labelled] = []

    def submit(self, batch: SampledBatch) -> Callable[[], list[float]]:
        numbers = samples_by_sentence(batch)
        self.prepare()
        self._label(batch, numbers)
        if not len(batch.samples):
            return list
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            sources = [batch.sources[sentence] for sentence in batch.sentence_of]
            ratio = self._estimate(sources, batch.samples).ratio
        return lambda: [float(value) for value in ratio.tolist()]

    def prepare(self) -> None:
        """The first steps of training, on damaged training pairs. Nothing happens after them, or after `load`."""
        if self.is_ready:
            return
        self.is_ready = True
        ahead = self._first_pairs(0)
        for step in range(self.settings.estimator_first_steps):
            now, ahead = ahead, self._first_pairs(step + 1)  # workers label the next ones meanwhile
            self._train([now])

    def after_step(self) -> dict[str, float]:
        """One step of the estimator on what was submitted since the last one."""
        waiting, self._waiting = self._waiting, []
        self.step += 1
        return self._train(waiting)

    def _first_pairs(self, step: int) -> Labelled:
        generator = random_numbers(self.settings.seed, FIRST, step, rank())
        places = generator.integers(0, len(self.pairs.sources), size=self.settings.estimator_pairs)
        sources = [self.pairs.sources[place] for place in places]
        references = [self.pairs.targets[place] for place in places]
        return self._submit_for_labels(sources, references, damage_references(references, generator))

    def _label(self, batch: SampledBatch, numbers: list[list[int]]) -> None:
        """Let the workers find what damaged references and samples of a batch cover."""
        place = (self.settings.seed, LATER, self.step, rank(), len(self._waiting))
        generator = random_numbers(*place)
        count = min(self.settings.estimator_pairs, len(batch.sources))
        sentences = generator.choice(len(batch.sources), size=count, replace=False).tolist()
        references = [batch.references[sentence] for sentence in sentences]
        translations = damage_references(references, generator)
        count = min(self.settings.estimator_samples, len(batch.samples))
        for sample in generator.choice(len(batch.samples), size=count, replace=False).tolist() if count else []:
            sentences.append(batch.sentence_of[sample])
            references.append(batch.references[sentences[-1]])
            translations.append([*batch.samples[sample]])
        sources = [batch.sources[sentence] for sentence in sentences]
        self._waiting.append(self._submit_for_labels(sources, references, translations))

    def _submit_for_labels(
        self, sources: Sequence[Any], references: Sequence[Any], translations: Sequence[Any]
    ) -> Labelled:
        rows = zip(sources, references, translations, strict=True)
        wait = self.pool.submit([([*source], [*reference], [[*text]]) for source, reference, text in rows])
        return sources, translations, wait

    def _estimate(self, sources: Sequence[Sequence[int]], translations: Sequence[Sequence[int]]) -> Any:
        return self.estimator(padded(sources, self.device), padded(translations, self.device))

    def _train(self, labelled: list[Labelled]) -> dict[str, float]:
        """One step of the optimiser; the numbers for the log."""
        sources = [source for one in labelled for source in one[0]]
        translations = [translation for one in labelled for translation in one[1]]
        coverage = [rows for one in labelled for rows in one[2]()]
        self.optimizer.zero_grad(set_to_none=False)
        logs = {}
        if sources:
            with torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
                estimate = self._estimate(sources, translations)
                labels = [padded([rows[place] for rows in coverage], self.device) for place in (0, 1)]
                loss, ratios = estimator_loss(estimate, labels[0], labels[1])
                loss.backward()
            logs = {
                "estimator_loss": loss.detach().item(),
                "estimator_error": (estimate.ratio.detach() - ratios).abs().mean().item(),
                "estimator_cdr": ratios.mean().item(),
            }
        average_gradients(self.estimator)
        self.optimizer.step()
        return logs

    def state(self) -> dict[str, Any]:
        """Tensors by name, and the number of steps."""
        result: dict[str, Any] = {"step": self.step, "is_ready": self.is_ready}
        for name, parameter in self.estimator.named_parameters():
            result[f"weights.{name}"] = parameter.detach().cpu().clone()
            moments = self.optimizer.state.get(parameter, {})
            for moment in MOMENTS:
                result[f"{moment}.{name}"] = moments.get(moment, torch.zeros_like(parameter)).cpu().clone()
            result["optimizer_step"] = int(moments.get("step", 0))
        return result

    def load(self, state: dict[str, Any]) -> None:
        expected = {key: value for key, value in self.state().items() if isinstance(value, Tensor)}
        for name, value in expected.items():
            if name not in state or state[name].shape != value.shape:
                shape = list(state[name].shape) if name in state else "missing"
                raise ValueError(
                    f"learned_cdr: {name} of the saved state is {shape} and must be {list(value.shape)}: resume with "
                    "the tokenizer and the estimator_size that the run was started with"
                )
        self.step, self.is_ready = int(state["step"]), bool(state["is_ready"])
        with torch.no_grad():
            for name, parameter in self.estimator.named_parameters():
                parameter.copy_(state[f"weights.{name}"])
                moments: dict[str, Tensor] = {"step": torch.tensor(float(state["optimizer_step"]))}
                for moment in MOMENTS:
                    moments[moment] = state[f"{moment}.{name}"].to(parameter).clone()
                self.optimizer.state[parameter] = moments
        self._waiting.clear()

    def close(self) -> None:
        self.pool.close()


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def average_gradients(model: torch.nn.Module) -> None:
    """The mean over all processes, so that all have the same estimate."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    for parameter in model.parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        dist.all_reduce(gradient)
        parameter.grad = gradient / dist.get_world_size()
