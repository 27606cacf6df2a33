"""What a training log says beside the loss: its terms, and how many target tokens a second are learnt from."""

import time
from typing import Any

import torch
from torch import Tensor

from hf_capsule_mt.training.checkpoints.resumable import ResumableTrainer

# Terms that a model's output may hold beside `loss`.
LOSS_TERMS = ("lm_loss", "bow_loss", "bca_loss")


class MeteredTrainer(ResumableTrainer):
    """Logs beside `loss` the mean of every term over the steps since the last log, and `target_tokens_per_second`.

    Throughput counts the tokens of the labels in all processes, and the time without evaluations and checkpoints.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forget()

    def _forget(self) -> None:
        self._terms: dict[str, Tensor] = {}
        self._terms_since = 0
        self._tokens: Tensor | int = 0  # of this process, since the last log
        self._all_tokens, self._all_seconds = 0, 0.0  # of all processes, up to the last log
        self._clock = time.perf_counter()  # when the last log was, shifted by the time that does not count

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in Transformers; sums of an earlier run are forgotten."""
        self._forget()
        return super().train(*args, **kwargs)

    def running_state(self) -> dict[str, Any]:
        terms = {name: float(value) for name, value in self._terms.items()}
        counted = {"all_tokens": self._all_tokens, "all_seconds": self._all_seconds}
        return super().running_state() | counted | {"terms": terms, "terms_since": self._terms_since}

    def load_running_state(self, state: dict[str, Any]) -> None:
        super().load_running_state(state)
        self._terms = {name: torch.tensor(value, device=self.args.device) for name, value in state["terms"].items()}
        self._terms_since = state["terms_since"]
        self._all_tokens, self._all_seconds = state.get("all_tokens", 0), state.get("all_seconds", 0.0)
        self._clock = time.perf_counter()

    def keep_terms(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None) -> None:
        """Count a batch and add up its terms."""
        if labels is not None:
            self._tokens = self._tokens + (labels != -100).sum()
        if not self._terms:
            self._terms_since = self.state.global_step
        for name in LOSS_TERMS:
            value = outputs.get(name) if isinstance(outputs, dict) else None
            if value is None:
                continue
            value = value.detach().float().mean()
            if num_items_in_batch is None:  # the mean of one of several batches
                steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
                value = value / steps
            elif self.sums_over_processes(num_items_in_batch):
                value = value * self.accelerator.num_processes
            self._terms[name] = self._terms[name] + value if name in self._terms else value

    def sums_over_processes(self, num_items_in_batch: Tensor | int | None) -> bool:
        """Whether the loss of a process is its share of a sum over all, as Transformers decides it."""
        counts = self.args.average_tokens_across_devices and self.model_accepts_loss_kwargs
        return bool(counts) and num_items_in_batch is not None

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add to a training log its terms and the throughput, and to the summary that of the whole run."""
        if "loss" in logs:
            steps = max(1, self.state.global_step - self._terms_since)
            for name, value in self._terms.items():
                logs[name] = float(self._mean_over_processes(value)) / steps
            self._terms = {}
            self._read_clock(logs)
        elif "train_runtime" in logs and self._all_seconds > 0.0:
            logs["train_target_tokens_per_second"] = round(self._all_tokens / self._all_seconds, 1)
        super().log(logs, *args, **kwargs)

    def _read_clock(self, logs: dict[str, float]) -> None:
        if isinstance(self._tokens, Tensor):
            tokens = int(self.accelerator.gather(self._tokens.reshape(1)).sum())
            seconds = time.perf_counter() - self._clock
            logs["target_tokens_per_second"] = round(tokens / seconds, 1)
            self._all_tokens, self._all_seconds = self._all_tokens + tokens, self._all_seconds + seconds
        self._tokens, self._clock = 0, time.perf_counter()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        started, clock = time.perf_counter(), self._clock
        super()._maybe_log_save_evaluate(*args, **kwargs)
        ended = time.perf_counter()
        self._clock = clock + ended - started if self._clock == clock else ended
