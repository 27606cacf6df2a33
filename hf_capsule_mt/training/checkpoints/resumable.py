"""Runs that go on exactly where they stopped."""

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.utils import logging

from hf_capsule_mt.training.checkpoints.files import (
    RUNNING,
    last_checkpoint,
    named_checkpoint,
    put_in_place,
    running_state,
)
from hf_capsule_mt.training.checkpoints.record import check_checkpoint
from hf_capsule_mt.training.checkpoints.whole import WholeCheckpointTrainer
from hf_capsule_mt.training.stop_on_signal import EvaluationStopped, StopOnSignal

logger = logging.get_logger(__name__)


class ResumableTrainer(WholeCheckpointTrainer):
    """[`WholeCheckpointTrainer`] whose runs can be killed at any time.

    - A run that is taken up again has the losses and the weights, bit for bit on a CPU, that it would have had. To
      what Transformers keeps comes what a log has summed up since the last one, of every process.
    - SIGTERM and Ctrl-C end training after the step at hand, with a checkpoint; `interrupted` says so. An evaluation
      that is due then, or under way, is made when the run is taken up again, and so is what a kill has cut off at the
      end of an epoch. A checkpoint that was written for a signal alone is removed when a run that found it by itself,
      with `resume_from_checkpoint=True`, has gone on to the next one.
    - Evaluating draws no random number of training's: with more evaluations, or fewer, it is the same training.
    - What a collator draws in a worker process (`dataloader_num_workers`) is all that is not taken up again.
    """

    model: Any
    _resumes_from: Path | None = None
    _began, _seconds_before = 0.0, 0.0
    _ended: float | None = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.enable_jit_checkpoint:
            raise ValueError(
                "enable_jit_checkpoint=True: this trainer writes a checkpoint on SIGTERM by itself; leave it out"
            )
        self._stop_on_signal = StopOnSignal(self.accelerator)
        self.add_callback(self._stop_on_signal)
        self.add_callback(_Restore(self))

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the last `train` before all was done."""
        return self._stop_on_signal.stopped

    @property
    def interrupted_by(self) -> signal.Signals | None:
        """The signal that this process got; in several processes another one may have got it."""
        return self._stop_on_signal.asked_by

    @property
    def trained_seconds(self) -> float:
        """How long training has taken, with the time up to the checkpoint that it went on from."""
        return self._seconds_before + (time.perf_counter() if self._ended is None else self._ended) - self._began

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in Transformers; with `resume_from_checkpoint=True` from the last whole checkpoint of `output_dir`."""
        put_in_place(self.args.output_dir)
        if getattr(self.model.config, "bow_accuracy", None) is not None:
            self.model.config.bow_accuracy = None  # measured before, on weights that change now
        self._stopgap = None
        if resume_from_checkpoint is True:
            found = last_checkpoint(self.args.output_dir)
            if found is None:
                raise ValueError(f"{self.args.output_dir} has no checkpoint to go on from: leave resuming out")
            self._stopgap, resume_from_checkpoint = found, str(found)
        self._resumes_from = Path(named_checkpoint(resume_from_checkpoint)) if resume_from_checkpoint else None
        if self._resumes_from is not None:
            check_checkpoint(self._resumes_from)
        self._left: dict[str, Any] = {}  # what the checkpoint says was still to be done after its step
        self._evaluates_later = self._epoch_ended = False
        self._due_at: int | None = None  # the last step with a checkpoint that was not written for a signal alone
        self._of_step: tuple[Any, Any] = None, None  # the norm of the gradient and the learning rate
        self._ignored_keys = ignore_keys_for_eval
        self._began, self._ended, self._seconds_before = time.perf_counter(), None, 0.0
        try:
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval, **kwargs)
        finally:
            self._ended = time.perf_counter()
            self._stop_on_signal.restore()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._make_up()
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)
        else:  # the checkpoint is of the last step, or early stopping's; Transformers would train one more
            self.control.should_training_stop = True

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._make_up()  # of the last epoch
        return super()._finalize_training(*args, **kwargs)

    def _make_up(self) -> None:
        """After the step of the checkpoint, do what was due there and is not in it."""
        left, self._left = self._left, {}
        if not left:
            return
        self._load_rng_state(str(self._resumes_from))  # it may be written once more
        self._of_step = left["grad_norm"], left["learning_rate"]
        if left["evaluates_later"]:
            self.control.should_evaluate = True
            self.control.should_save = left["due"]
            self._end_of_step()
        at_end = float(self.state.epoch or 0.0).is_integer() or self.state.global_step >= self.state.max_steps
        if at_end and not self._epoch_ended and not self.interrupted:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._end_of_step()

    def _end_of_step(self) -> None:
        norm, rate = self._of_step
        epoch: Any = self.state.epoch
        self._maybe_log_save_evaluate(
            self._tr_loss, norm, self.model_wrapped, None, epoch, self._ignored_keys, time.time(), learning_rate=rate
        )

    def _maybe_log_save_evaluate(
        self, tr_loss: Tensor, grad_norm: Any, model: nn.Module, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._of_step = grad_norm, kwargs.get("learning_rate")
        self._evaluates_later = False
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        except EvaluationStopped:
            self._evaluates_later = True
            self._stop_on_signal.only_for_this |= not self.control.should_save
            self.control.should_evaluate, self.control.should_training_stop = False, True
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if kwargs.get("skip_scheduler"):  # before the first step, when there is nothing to save
            return super()._evaluate(*args, **kwargs)
        rows = len(self.state.log_history)
        try:
            with self._stop_on_signal.leaving_evaluation():
                return super()._evaluate(*args, **kwargs)
        except EvaluationStopped:
            del self.state.log_history[rows:]  # of several data sets one may be done
            raise

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with _random_state_kept():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with _random_state_kept():
            return super().predict(*args, **kwargs)

    def running_state(self) -> dict[str, Any]:
        """What this process has summed up since the last log, for JSON, in which floats are exact."""
        return {"loss": float(self._tr_loss), "last_logged": self._globalstep_last_logged}

    def load_running_state(self, state: dict[str, Any]) -> None:
        self._tr_loss = torch.tensor(state["loss"], device=self.args.device)
        self._globalstep_last_logged = state["last_logged"]
        self._total_loss_scalar = -float(self._mean_over_processes(self._tr_loss))  # not of the steps of this call

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if not self._stop_on_signal.only_for_this:
            self._due_at = self.state.global_step
        super()._save_checkpoint(model, trial)

    def save_beside(self, folder: Path) -> None:
        norm, rate = self._of_step
        state = self.running_state() | {
            "processes": self.args.world_size,
            "plan": self._plan(),
            "due": self._due_at == self.state.global_step,
            "evaluates_later": self._evaluates_later,
            "epoch_ended": self._epoch_ended,
            "grad_norm": None if norm is None else float(norm),
            "learning_rate": rate,
            "seconds": self.trained_seconds,
        }
        file = folder / RUNNING.format(self.args.process_index)
        file.write_text(json.dumps(state), encoding="utf-8")

    def load_beside(self, folder: Path) -> None:
        """Read what `save_beside` wrote."""
        self._load_left(folder)
        state = running_state(folder, self.args.process_index)
        if not state:
            logger.warning(f"{folder} says nothing of the steps since the last log: the next logged loss is partial")
            return
        if state["processes"] != self.args.world_size:
            logger.warning(
                f"{folder} is of a run with {state['processes']} processes, this one has {self.args.world_size}: "
                "pairs of this epoch may be left out or repeated"
            )
            return
        before, now = state.get("plan", {}), self._plan()
        changed = [f"{name} was {before[name]} and is {now[name]}" for name in before if before[name] != now.get(name)]
        if changed:
            logger.warning(
                f"{folder} is of a run with other batches ({', '.join(changed)}): pairs of this epoch may be left out "
                "or repeated"
            )
        self.load_running_state(state)

    def _load_left(self, folder: Path) -> None:
        """What was left to do, as the main process wrote it: in one mind, however many processes there are now."""
        state = running_state(folder)
        found = [state if "epoch_ended" in state else {}]
        broadcast_object_list(found)
        self._left = found[0]
        self._seconds_before = self._left.get("seconds", 0.0)
        self._epoch_ended = self._left.get("epoch_ended", True)
        self._due_at = self.state.global_step if self._left.get("due", True) else None

    def _plan(self) -> dict[str, Any]:
        """What decides which pairs a step sees."""
        names = (
            "max_tokens_per_batch",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "seed",
            "data_seed",
        )
        return {name: getattr(self.args, name, None) for name in names}

    def _mean_over_processes(self, value: Tensor) -> Tensor:
        return self.accelerator.gather(value.detach().reshape(1)).mean()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are tied to others, or computed, are in no checkpoint and are not missed."""
        known = {*getattr(self.model, "all_tied_weights_keys", ()), *(self.model._keys_to_ignore_on_save or ())}
        for name in known.intersection(load_result.missing_keys):
            load_result.missing_keys.remove(name)
        super()._issue_warnings_after_load(load_result)


class _Restore(TrainerCallback):
    """When the Trainer has reset what it sums up, put back what the checkpoint says; and know when an epoch begins and
    ends."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self.trainer._resumes_from is not None:
            self.trainer.load_beside(self.trainer._resumes_from)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.trainer._epoch_ended = False

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.trainer._epoch_ended = True


@contextmanager
def _random_state_kept() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
