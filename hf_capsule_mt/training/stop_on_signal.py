"""Ends training with a checkpoint when the machine is about to be taken away."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Processes ask each other in every so many steps only: on a GPU asking waits for the step to end.
STEPS_BETWEEN_QUESTIONS = 5


class EvaluationStopped(Exception):
    """SIGTERM came: the evaluation is to be made when the run is taken up again."""


class StopOnSignal(TrainerCallback):
    """On SIGTERM, save after the step at hand and stop; several processes do so after the same step. An evaluation is
    left, after the same batch in all processes.

    Further signals change nothing, since launchers and schedulers both send one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.asked = self.stopped = False
        self.only_for_this = False  # whether nothing else asked for the checkpoint
        self._evaluated: int | None = None  # batches of the evaluation at hand
        self._previous: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.asked = self.stopped = self.only_for_this = False
        if threading.current_thread() is threading.main_thread():  # no other thread may set a handler
            self._previous = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        if not self.asked:
            os.write(2, b"SIGTERM: training ends with a checkpoint after this step\n")
        self.asked = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        # After the last step training ends anyway.
        if state.global_step < state.max_steps and self._anyone_was_asked(state.global_step):
            self.only_for_this = not control.should_save
            self.stopped = control.should_training_stop = control.should_save = True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.stopped:  # when the run is taken up again, the epoch ends
            control.should_log = control.should_evaluate = control.should_save = False
        return control

    @contextmanager
    def leaving_evaluation(self) -> Iterator[None]:
        """An evaluation during which SIGTERM raises [`EvaluationStopped`]."""
        if self.stopped:
            raise EvaluationStopped
        self._evaluated = 0
        try:
            yield
        finally:
            self._evaluated = None

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        if self._evaluated is None:
            return
        if self._anyone_was_asked(self._evaluated):
            self.stopped = True
            raise EvaluationStopped
        self._evaluated += 1

    def _anyone_was_asked(self, step: int) -> bool:
        if self.accelerator.num_processes == 1:
            return self.asked
        if step % STEPS_BETWEEN_QUESTIONS:
            return False
        asked = torch.tensor([int(self.asked)], device=self.accelerator.device)
        return bool(self.accelerator.gather(asked).any())

    def restore(self) -> None:
        """Give the signal back to who had it."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None
