"""Early stopping that keeps its count when a run is resumed."""

from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments


class PatientEarlyStopping(EarlyStoppingCallback):
    """[`EarlyStoppingCallback`] that goes on counting. Transformers' own starts at 0 after resuming."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        callbacks: Any = state.stateful_callbacks
        stored = callbacks.get(type(self).__name__) if isinstance(callbacks, dict) else None
        if state.global_step > 0 and isinstance(stored, dict):
            self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"]
            if self.early_stopping_patience_counter >= self.early_stopping_patience:
                control.should_training_stop = True
