"""A trainer that evaluates and ends with averaged weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback
from transformers.utils import logging

from hf_capsule_mt.checkpoint_contents import belongs_to_copy_of
from hf_capsule_mt.outputs import check_folder
from hf_capsule_mt.training.checkpoints.average import (
    WEIGHTS,
    average_checkpoints,
    ranked_checkpoints,
    regular_checkpoints,
)
from hf_capsule_mt.training.finite import FiniteTrainer
from hf_capsule_mt.training.processes import from_main

logger = logging.get_logger(__name__)

AVERAGES = "exponential_average.safetensors"


class ExponentialAverage:
    """`average <- d average + (1 - d) weight` after every step, in float32, for what is trained of a model.

    `d` is `decay`, at first smaller, `(1 + steps) / (10 + steps)`, so that the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.steps = model, decay, 0
        self.values = {name: value.detach().float().clone() for name, value in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        weights = [value.float() for value in self._weights().values()]
        get_ema_multi_avg_fn(decay)(list(self.values.values()), weights, self.steps)

    @torch.no_grad()
    def put_in(self) -> None:
        """Give the averages to the model."""
        for name, value in self._weights().items():
            value.copy_(self.values[name])

    @contextmanager
    def used(self) -> Iterator[None]:
        """The model has the averages meanwhile."""
        own = {name: value.detach().clone() for name, value in self._weights().items()}
        self.put_in()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in self._weights().items():
                    value.copy_(own[name])

    def save(self, folder: Path) -> None:
        save_file(self.values, folder / AVERAGES, metadata={"format": "pt", "steps": str(self.steps)})

    def load(self, folder: Path) -> None:
        file = folder / AVERAGES
        if not file.is_file():
            raise ValueError(f"{folder} has no {AVERAGES}: it was written without ema_decay, go on without it too")
        with safe_open(file, framework="pt") as opened:
            self.steps = int(opened.metadata()["steps"])
        loaded = load_file(file)
        for name, value in self.values.items():
            value.copy_(loaded[name])


class AveragingTrainer(FiniteTrainer):
    """With `ema_decay`, evaluations and the model at the end have the exponential moving average of the weights, those
    of the best checkpoint with `load_best_model_at_end`; `model.safetensors` of a checkpoint has the trained weights,
    from which training goes on. With `average_checkpoints`, the model at the end is the mean of so many checkpoints,
    the last or the best, or of fewer where no more are there. A run that was interrupted ends with neither."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._average: ExponentialAverage | None = None
        self.averaged_steps: list[int] = []  # of the checkpoints whose mean the model ends with
        wanted = [name for name in ("ema_decay", "average_checkpoints") if getattr(self.args, name, None)]
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if wanted and sharded:
            raise ValueError(
                f"{wanted[0]}={getattr(self.args, wanted[0])}: weights that FSDP or DeepSpeed has cut up are not "
                "averaged while training; leave it out, and use scripts/average_checkpoints.py afterwards"
            )
        if getattr(self.args, "average_checkpoints", None):  # before training, not after it
            sources = self._averaged.parent.glob("checkpoint-*")
            check_folder(self._averaged, overwrite=True, belongs=belongs_to_copy_of(*sources))
        if getattr(self.args, "ema_decay", None):
            self.add_callback(_UpdateAverage(self))

    @property
    def _averaged(self) -> Path:
        return Path(self.args.output_dir) / "averaged"

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._average, self.averaged_steps = None, []
        return super().train(*args, **kwargs)

    def final_weights(self) -> dict[str, Any]:
        """Which weights the model has at the end of training: of what kind, and after which steps."""
        best = self.state.best_global_step if self.args.load_best_model_at_end else None
        step = best or self.state.global_step
        if self.averaged_steps:
            return {"kind": "mean of checkpoints", "steps": self.averaged_steps}
        if getattr(self.args, "ema_decay", None):
            return {"kind": "exponential moving average", "steps": [step]}
        return {"kind": "best checkpoint" if best else "last step", "steps": [step]}

    def start_average(self) -> None:
        self._average = ExponentialAverage(self.model, self.args.ema_decay)
        if self._resumes_from is not None:
            self._average.load(self._resumes_from)

    def save_beside(self, folder: Path) -> None:
        super().save_beside(folder)
        if self._average is not None and self.args.should_save:
            self._average.save(folder)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if self._average is None:
            return super().evaluate(*args, **kwargs)
        with self._average.used():
            return super().evaluate(*args, **kwargs)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self._average is not None and self.state.best_model_checkpoint is not None:
            self._average.load(Path(self.state.best_model_checkpoint))

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._finalize_training(*args, **kwargs)
        if self._average is not None and not self.interrupted:
            self._average.put_in()
        self._average = None
        if getattr(self.args, "average_checkpoints", None) and not self.interrupted:
            self._average_checkpoints()
        return result

    def _average_checkpoints(self) -> None:
        output = self._averaged
        chosen = from_main(PartialState(), lambda: self._write_average(output))
        if self.args.should_save and not self.is_world_process_zero():  # a node with a disk of its own
            average_checkpoints(chosen, output, overwrite=True)
        self.accelerator.wait_for_everyone()
        if chosen:
            self.model.load_state_dict(load_file(output / WEIGHTS), strict=False)  # tied weights are there once
            self.averaged_steps = [int(path.name.rpartition("-")[2]) for path in chosen]

    def _write_average(self, output: Path) -> list[Path]:
        """Writes the mean of the checkpoints that are wanted, as far as they are there; returns them."""
        count, folder, history = self.args.average_checkpoints, Path(self.args.output_dir), self.state.log_history
        wanted = ""
        if self.args.average_best:
            metric = "eval_" + (self.args.metric_for_best_model or "bleu").removeprefix("eval_")
            found = ranked_checkpoints(folder, metric, self.args.greater_is_better is not False, history)
            wanted = f" with {metric}"
        else:
            regular = regular_checkpoints(folder, history)
            found = {step: path for step, path in regular.items() if step <= self.state.global_step}
        chosen = [found[step] for step in sorted(list(found)[-count:])]
        if len(chosen) < count:
            taken = "their mean is taken" if chosen else "the weights stay as they were trained"
            logger.warning(f"average_checkpoints={count}: {len(chosen)}{wanted} are there, {taken}")
        if chosen:
            average_checkpoints(chosen, output, overwrite=True)
        return chosen


class _UpdateAverage(TrainerCallback):
    def __init__(self, trainer: AveragingTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.start_average()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.trainer._average is not None:
            self.trainer._average.update()
