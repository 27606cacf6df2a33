"""Checkpoints that are whole or not there, and runs that go on exactly where they stopped.

A checkpoint is written into a folder of its own beside the others, flushed to disk, and only then takes its name: one
that a dying process or a full disk cut short is never seen as a checkpoint, and those before it stay as they are.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from transformers.utils import logging

from hf_capsule_mt.training.stop_on_signal import StopOnSignal

logger = logging.get_logger(__name__)

UNFINISHED = "_unfinished_checkpoints"  # the Trainer's pushes to the Hub leave out names with this first character
STATE = "trainer_state.json"


def last_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint in `folder` that training can go on from; None without any."""
    found = [path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if (path / STATE).is_file()]
    steps = {path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"): path for path in found}
    numbers = [int(step) for step in steps if step.isdigit()]
    return steps[str(max(numbers))] if numbers else None


class ResumableTrainer(Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] whose runs can be killed at any time.

    - Checkpoints appear whole or not at all. One that cannot be written (a full disk) is an `OSError` that names the
      last good one.
    - A run that is taken up again has the losses and the weights, bit for bit on a CPU, that it would have had. To
      what Transformers keeps comes what a log has summed up since the last one, of every process.
    - SIGTERM ends training after the step or the evaluation at hand, with a checkpoint; `interrupted` says so.
    - Evaluating draws no random number of training's: with more evaluations, or fewer, it is the same training.
    """

    args: Any
    model: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.enable_jit_checkpoint:
            raise ValueError(
                "enable_jit_checkpoint=True: this trainer writes a checkpoint on SIGTERM by itself; leave it out"
            )
        self._writing_to: Path | None = None
        self._resumes_from: Path | None = None
        self._stop_on_signal = StopOnSignal(self.accelerator)
        self.add_callback(self._stop_on_signal)
        self.add_callback(_Restore(self))

    @property
    def interrupted(self) -> bool:
        """Whether the last `train` was ended by SIGTERM before its last step."""
        return self._stop_on_signal.stopped and self.state.global_step < self.state.max_steps

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in Transformers; with `resume_from_checkpoint=True` from the last whole checkpoint of `output_dir`."""
        if resume_from_checkpoint is True:
            found = last_checkpoint(self.args.output_dir)
            if found is None:
                raise ValueError(f"{self.args.output_dir} has no checkpoint to go on from: leave resuming out")
            resume_from_checkpoint = str(found)
        self._resumes_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._stop_on_signal.restore()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)
        else:  # the checkpoint is of the last step, or early stopping's; Transformers would train one more
            self.control.should_training_stop = True

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

    def save_beside(self, folder: Path) -> None:
        """Write what else a checkpoint needs; every process calls this."""
        state = self.running_state() | {"processes": self.args.world_size, "plan": self._plan()}
        file = folder / f"running_{self.args.process_index}.json"
        file.write_text(json.dumps(state), encoding="utf-8")

    def load_beside(self, folder: Path) -> None:
        """Read what `save_beside` wrote."""
        file = folder / f"running_{self.args.process_index}.json"
        if not file.is_file():
            logger.warning(f"{folder} says nothing of the steps since the last log: the next logged loss is partial")
            return
        state = json.loads(file.read_text(encoding="utf-8"))
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

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._writing_to is None else str(self._writing_to)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._writing_to is None:  # else it is pushed when it has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(super()._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        part = folder / UNFINISHED
        if self.is_local_process_zero():
            shutil.rmtree(part, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._writing_to = part
        try:
            super()._save_checkpoint(model, trial)
            (part / name).mkdir(parents=True, exist_ok=True)  # a process that had nothing to write
            self.save_beside(part / name)
            self._name_best(folder, part / name)
            if self.is_local_process_zero():
                _flush(part / name)
        except (OSError, RuntimeError, SafetensorError) as error:
            self._say_what_is_left(folder, name, error)
        finally:
            self._writing_to = None
        self._put_in_place(part, folder, name)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / name))
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=str(folder),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _name_best(self, folder: Path, written: Path) -> None:
        """The best checkpoint is called by the name it will have."""
        best = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if self.state.best_global_step and (best.name == written.name or best.is_dir()):
            self.state.best_model_checkpoint = str(best)
            if self.args.should_save:
                self.state.save_to_json(str(written / STATE))

    def _put_in_place(self, part: Path, folder: Path, name: str) -> None:
        self.accelerator.wait_for_everyone()  # every process has written its files
        for main in (self.is_world_process_zero(), self.is_local_process_zero()):  # nodes may have disks of their own
            if main and (part / name).is_dir():
                if (folder / name).exists():  # of an earlier run
                    (folder / name).rename(part / "replaced")
                (part / name).rename(folder / name)
                shutil.rmtree(part, ignore_errors=True)
                _flush(folder, files=False)
            self.accelerator.wait_for_everyone()

    def _say_what_is_left(self, folder: Path, name: str, error: Exception) -> None:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        last = last_checkpoint(folder)
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        raise OSError(
            f"{folder / name} could not be written ({error}; {free / 1e9:.2f} GB are free): make room and train with "
            + (f"resume_from_checkpoint={str(last)!r}, which is whole" if last else "another try, nothing was saved")
        ) from error

    def _mean_over_processes(self, value: Tensor) -> Tensor:
        return self.accelerator.gather(value.detach().reshape(1)).mean()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are tied to others, or computed, are in no checkpoint and are not missed."""
        known = {*getattr(self.model, "all_tied_weights_keys", ()), *(self.model._keys_to_ignore_on_save or ())}
        for name in known.intersection(load_result.missing_keys):
            load_result.missing_keys.remove(name)
        super()._issue_warnings_after_load(load_result)


class _Restore(TrainerCallback):
    """When the Trainer has reset what it sums up, put back what the checkpoint says."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self.trainer._resumes_from is not None:
            self.trainer.load_beside(self.trainer._resumes_from)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def _flush(folder: Path, files: bool = True) -> None:
    """To disk: what is in `folder`, and its list of names."""
    paths = [path for path in folder.rglob("*") if path.is_file()] if files else []
    for path in [*paths, folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
