"""The `Seq2SeqTrainer` for translation: batches by tokens, and losses of several terms."""

from collections.abc import Sized
from functools import partial
from typing import Any

import datasets
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import seed_worker

from hf_capsule_mt.data.token_batches import TokenBatchSampler, pair_lengths
from hf_capsule_mt.training.translation_evaluation import TranslationEvaluation

# Terms that a model's output may hold beside `loss`.
LOSS_TERMS = ("lm_loss", "bow_loss", "bca_loss")


class CapsuleSeq2SeqTrainer(TranslationEvaluation, Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] for models whose loss has several terms; takes the same arguments, works with any model.

    - Every term that the model returns (`lm_loss`, `bow_loss`, `bca_loss`) is logged beside `loss`, as the mean over
      the steps since the last log.
    - With [`CapsuleSeq2SeqTrainingArguments`], `max_tokens_per_batch` fills batches by tokens, in any number of
      processes, and `auxiliary_warmup_steps` raises the auxiliary losses to their weights.
    - With `predict_with_generate`, evaluation is one pass over batches of like length and reports BLEU and chrF; see
      [`TranslationEvaluation`].
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

    def get_train_dataloader(self) -> DataLoader:
        """As in Transformers, or by tokens with `max_tokens_per_batch`."""
        budget = getattr(self.args, "max_tokens_per_batch", None)
        if budget is None:
            return super().get_train_dataloader()
        dataset: Any = self.train_dataset
        if dataset is None or isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise ValueError(
                f"max_tokens_per_batch={budget}: batches by tokens need a training set that knows the lengths of all "
                f"its pairs; {type(dataset).__name__} does not (a streamed one, say)"
            )
        sampler = TokenBatchSampler(
            pair_lengths(dataset),
            max_tokens=budget,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
        )
        return self._loader_of(dataset, sampler, "training")

    def _loader_of(self, dataset: Any, sampler: TokenBatchSampler, description: str) -> DataLoader:
        """Loads the batches that `sampler` has shared out among the processes."""
        collator: Any = self.data_collator
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        workers = self.args.dataloader_num_workers
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=partial(seed_worker, num_workers=workers, rank=self.args.process_index),
        )
        # accelerate, told of one process, only moves the batches to the device.
        return prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=self.accelerator.device_placement,
            rng_types=[],
        )

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
        share = self._auxiliary_share
        if model.training and share < 1.0:
            loss = loss - (1.0 - share) * self._auxiliary_loss(model, outputs, num_items_in_batch)
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
        if self._sums_over_processes(num_items_in_batch):
            loss = loss * self.accelerator.num_processes
        return loss + self._auxiliary_loss(model, outputs, num_items_in_batch), outputs

    @property
    def _auxiliary_share(self) -> float:
        """The part of their weights that the auxiliary losses have at this step."""
        warmup = getattr(self.args, "auxiliary_warmup_steps", 0)
        return 1.0 if warmup == 0 else min(1.0, self.state.global_step / warmup)

    def _auxiliary_loss(
        self, model: nn.Module, outputs: Any, num_items_in_batch: Tensor | int | None
    ) -> Tensor | float:
        """The auxiliary terms with their weights, as they stand in the loss of this process; 0 without any."""
        auxiliary = getattr(self.accelerator.unwrap_model(model), "weighted_auxiliary_loss", None)
        if auxiliary is None:
            return 0.0
        return auxiliary(outputs) * (
            self.accelerator.num_processes if self._sums_over_processes(num_items_in_batch) else 1
        )

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
