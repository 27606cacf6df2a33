"""Ends training with a checkpoint when the machine is about to be taken away."""

import os
import signal
import threading
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Processes ask each other in every so many steps only: on a GPU asking waits for the step to end.
STEPS_BETWEEN_QUESTIONS = 5


class StopOnSignal(TrainerCallback):
    """On SIGTERM, save after the step at hand, and its evaluation if one is due, and stop; several processes do so
    after the same step.

    Further signals change nothing, since launchers and schedulers both send one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.asked = self.stopped = False
        self._previous: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.asked = self.stopped = False
        if threading.current_thread() is threading.main_thread():  # no other thread may set a handler
            self._previous = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        if not self.asked:
            os.write(2, b"SIGTERM: training ends with a checkpoint after this step\n")
        self.asked = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self._anyone_was_asked(state.global_step):
            # An evaluation that is due is made: without it the run would not go on as if nothing had happened.
            self.stopped = control.should_training_stop = control.should_save = True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.stopped:  # in the middle of the epoch
            control.should_log = control.should_evaluate = control.should_save = False
        return control

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
