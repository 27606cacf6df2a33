"""Early stopping that remembers its patience when a run is taken up again."""

from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments


class PatientEarlyStopping(EarlyStoppingCallback):
    """[`EarlyStoppingCallback`] that goes on counting; Transformers' starts at 0 unless told to restore all."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        callbacks: Any = state.stateful_callbacks
        stored = callbacks.get(type(self).__name__) if isinstance(callbacks, dict) else None
        if state.global_step > 0 and isinstance(stored, dict):
            self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"]
            if self.early_stopping_patience_counter >= self.early_stopping_patience:
                control.should_training_stop = True  # as it was
