"""The `Seq2SeqTrainer` that logs every term of the loss and keeps all of them under label smoothing."""

from typing import Any

from torch import Tensor, nn
from transformers import Seq2SeqTrainer

# Terms that a model's output may hold beside `loss`.
LOSS_TERMS = ("lm_loss", "bow_loss", "bca_loss")


class CapsuleSeq2SeqTrainer(Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] for models whose loss has several terms; takes the same arguments, works with any model.

    - Every term that the model returns (`lm_loss`, `bow_loss`, `bca_loss`) is logged beside `loss`, as the mean over
      the steps since the last log.
    - `label_smoothing_factor` smooths the translation loss alone. The stock Trainer takes the labels away from the
      model then, so that auxiliary losses silently vanish.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"n_gpu={self.args.n_gpu}: several GPUs in one process (DataParallel) would average the terms of the "
                "loss wrongly; start one process for each with `accelerate launch`"
            )
        self._terms: dict[str, Tensor] = {}
        self._terms_since = 0

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """As in Transformers, and keeps the terms of a training step for the next log."""
        smoother = self.label_smoother
        if smoother is None or self.compute_loss_func is not None or "labels" not in inputs or not model.training:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        else:
            loss, outputs = self._smoothed_loss(smoother, model, inputs, num_items_in_batch)
        if model.training:
            self._keep_terms(outputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _smoothed_loss(
        self, smoother: Any, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
    ) -> tuple[Tensor, Any]:
        """The smoothed translation loss plus the auxiliary terms with their weights."""
        counted = (
            {}
            if num_items_in_batch is None or not self.model_accepts_loss_kwargs
            else {"num_items_in_batch": num_items_in_batch}
        )
        outputs = model(**inputs, **counted)
        loss = smoother(outputs, inputs["labels"], num_items_in_batch=num_items_in_batch)
        auxiliary = getattr(self.accelerator.unwrap_model(model), "weighted_auxiliary_loss", None)
        if auxiliary is not None:
            loss = loss + auxiliary(outputs)
        if self._sums_over_processes(num_items_in_batch):
            loss = loss * self.accelerator.num_processes
        return loss, outputs

    def _sums_over_processes(self, num_items_in_batch: Tensor | int | None) -> bool:
        """Whether the loss of a process is its share of a sum over all, as Transformers decides it."""
        counts = self.args.average_tokens_across_devices and self.model_accepts_loss_kwargs
        return bool(counts) and num_items_in_batch is not None

    def _keep_terms(self, outputs: Any, num_items_in_batch: Tensor | int | None) -> None:
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
            elif self._sums_over_processes(num_items_in_batch):
                value = value * self.accelerator.num_processes
            self._terms[name] = self._terms[name] + value if name in self._terms else value

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the mean of every term over the steps since the last training log."""
        if "loss" in logs and self._terms:
            steps = max(1, self.state.global_step - self._terms_since)
            for name, value in self._terms.items():
                logs[name] = float(self.accelerator.gather(value.reshape(1)).mean()) / steps
            self._terms = {}
        super().log(logs, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in Transformers; terms of an earlier run are forgotten."""
        self._terms = {}
        return super().train(*args, **kwargs)
