"""Training that has diverged stops before anything of it is saved."""

import math
from typing import Any

import torch
from torch import Tensor

from hf_capsule_mt.modeling.saving.finite_weights import not_finite
from hf_capsule_mt.training.checkpoints.files import last_checkpoint, step_in_name
from hf_capsule_mt.training.metered import MeteredTrainer

NEVER = torch.iinfo(torch.int64).max


class Diverged(ValueError):
    """A loss, a gradient or a weight is not finite."""


class FiniteTrainer(MeteredTrainer):
    """Raises [`Diverged`] at the first step whose loss or norm of the gradient is infinite or not a number, after an
    evaluation with such a loss, and before such weights are saved.

    A GPU is asked where something is logged, evaluated or saved, and remembers the step until then. A step that fp16's
    scaling of gradients has skipped does not count.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.args.logging_nan_inf_filter = False  # which would log the last finite loss in the place of such a one
        self._first_steps: dict[str, Tensor] = {}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._first_steps = {}
        return super().train(*args, **kwargs)

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        self._watch("the loss", tr_loss)
        if grad_norm is not None and not self.accelerator.optimizer_step_was_skipped:
            self._watch("the norm of the gradient", grad_norm)
        control = self.control
        if tr_loss.device.type == "cpu" or control.should_log or control.should_evaluate or control.should_save:
            self._stop_if_diverged()
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._stop_if_diverged()
        return super()._finalize_training(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = super().evaluate(*args, **kwargs)
        self._check_losses(metrics)
        return metrics

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        output = super().predict(*args, **kwargs)
        self._check_losses(output.metrics or {})
        return output

    def _check_losses(self, metrics: dict[str, Any]) -> None:
        """Stop if an evaluation reports a loss that is not finite."""
        for name, value in metrics.items():
            if name.endswith("loss") and isinstance(value, float) and not math.isfinite(value):
                self._stop(f"{name} is {value}", self.state.global_step)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if self.args.should_save:
            named = self.model.named_parameters() if state_dict is None else state_dict.items()
            name = not_finite(named)
            if name is not None:
                self._stop(f"{name} has values that are not finite", self.state.global_step)
        super()._save(output_dir, state_dict)

    def _watch(self, what: str, value: Any) -> None:
        """Keep the first step at which the value is not finite, without waiting for a GPU."""
        value = value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)
        step = torch.where(torch.isfinite(value.detach()), NEVER, self.state.global_step)
        self._first_steps[what] = torch.minimum(self._first_steps.get(what, step), step)

    def _stop_if_diverged(self) -> None:
        steps = {what: int(step) for what, step in self._first_steps.items()}
        first = min(steps.values(), default=NEVER)
        if first < NEVER:
            whats = [what for what, step in steps.items() if step == first]
            self._stop(f"{' and '.join(whats)} {'are' if len(whats) > 1 else 'is'} not finite", first)

    def _stop(self, what: str, step: int) -> None:
        args, last = self.args, last_checkpoint(self.args.output_dir)
        good = "no checkpoint was written before"
        if last is not None and step_in_name(last) <= step:
            good = f"the last checkpoint before is {last}"
        rates = f"learning_rate={args.learning_rate:g}, warmup_steps={args.warmup_steps:g}"
        half = "overflow in half precision (fp16=True; bf16 has a wider range), " if args.fp16 else ""
        raise Diverged(
            f"training has diverged at step {step}: {what}. Nothing was saved since, {good}. Likely causes: a "
            f"learning rate that is too high ({rates}, max_grad_norm={args.max_grad_norm:g}), {half}or bad data"
        )
