"""The `Seq2SeqTrainer` for translation: batches by tokens, and losses of several terms."""

from collections.abc import Sized
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import seed_worker
from transformers.utils import logging

from hf_capsule_mt.data.batches.dataset_lengths import pair_lengths
from hf_capsule_mt.data.batches.token_batches import TokenBatchSampler
from hf_capsule_mt.training.checkpoints.averaging import AveragingTrainer
from hf_capsule_mt.training.early_stopping import PatientEarlyStopping
from hf_capsule_mt.training.epoch_order import LengthGroupedOrder
from hf_capsule_mt.training.stop_on_signal import IgnoreCtrlC
from hf_capsule_mt.training.translation_evaluation import TranslationEvaluation

logger = logging.get_logger(__name__)


class CapsuleSeq2SeqTrainer(TranslationEvaluation, AveragingTrainer):
    """[`Seq2SeqTrainer`] for translation; takes the same arguments, works with any encoder-decoder.

    - Every term of the loss that the model returns (`lm_loss`, `bow_loss`, `bca_loss`) is logged beside `loss`, and
      the throughput in target tokens a second; see [`MeteredTrainer`].
    - With [`CapsuleSeq2SeqTrainingArguments`], `max_tokens_per_batch` fills batches by tokens, in any number of
      processes, `auxiliary_warmup_steps` raises the auxiliary losses to their weights, `early_stopping_patience` stops
      when BLEU no longer rises, `ema_decay` and `average_checkpoints` average weights, see [`AveragingTrainer`].
    - With `predict_with_generate`, evaluation is one pass over batches of like length and reports BLEU and chrF; see
      [`TranslationEvaluation`].
    - A run can be killed at any time and goes on exactly where its last checkpoint was; see [`ResumableTrainer`].
    - `label_smoothing_factor` smooths the translation loss alone, and only in training. The stock Trainer takes the
      labels away from the model then, so that auxiliary losses silently vanish.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"n_gpu={self.args.n_gpu}: several GPUs in one process (DataParallel) would average the terms of the "
                "loss wrongly; start one process for each with `accelerate launch`"
            )
        auxiliary = {name: getattr(self.model.config, name, 0.0) for name in ("bow_loss_weight", "bca_loss_weight")}
        if self.compute_loss_func is not None and any(auxiliary.values()):
            raise ValueError(
                f"compute_loss_func: Transformers keeps the labels from a model then, which needs them for the "
                f"auxiliary losses of {auxiliary}; set these to 0, or leave compute_loss_func out"
            )
        self._skips_logits = bool(getattr(self.args, "skip_logits", False))
        if self._skips_logits and not getattr(self.model, "can_skip_logits", False):
            raise ValueError(
                f"skip_logits=True: {type(self.model).__name__} cannot compute its loss without logits, models of "
                "hf_capsule_mt can; leave it out"
            )
        self.padding_share: float | None = None  # of the training batches, once they are made
        patience = getattr(self.args, "early_stopping_patience", None)
        if patience is not None and self.args.metric_for_best_model == "bleu" and self.is_fsdp_enabled:
            raise ValueError(
                f"early_stopping_patience={patience}: under FSDP evaluation is Transformers' own and reports no BLEU; "
                'set metric_for_best_model="loss"'
            )
        if patience is not None:
            self.add_callback(PatientEarlyStopping(patience))

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        # accelerate (1.15) gives the input and output embeddings a unit of their own. In an encoder-decoder the
        # encoder and the decoder hold the tied weight too, and FSDP refuses one weight in two units: all to the root.
        names = ("get_input_embeddings", "get_output_embeddings")
        vars(self.model).update(dict.fromkeys(names, lambda: None))
        try:
            return super()._prepare_for_training(*args, **kwargs)
        finally:
            for name in names:
                delattr(self.model, name)

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers; a model of this package is pushed with its code, from the first time on."""
        super().init_hf_repo(*args, **kwargs)
        model: Any = self.accelerator.unwrap_model(self.model)
        if getattr(model, "can_carry_code", False):
            model.config.carry_code()
            if self.is_world_process_zero():
                model.config.save_pretrained(self.args.output_dir)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers, whose card loses the scores; one that stands beside the results of a run is kept."""
        if not all(Path(str(self.args.output_dir), name).is_file() for name in ("README.md", "results.json")):
            super().create_model_card(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """As in Transformers, or by tokens with `max_tokens_per_batch`."""
        loader = self._training_batches()
        base = getattr(loader, "base_dataloader", loader)
        base.worker_init_fn = IgnoreCtrlC(base.worker_init_fn)
        if self.args.dataloader_persistent_workers:
            # Each time a loader starts workers it draws a number. Those that live on are started once in a run, and
            # once more when it is taken up again: not from training's own random numbers, which would be others then.
            base.generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        return LengthGroupedOrder(sampler, self._data_seed) if isinstance(sampler, LengthGroupedSampler) else sampler

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def _training_batches(self) -> DataLoader:
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
            seed=self._data_seed,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
        )
        self.padding_share = sampler.padding_share
        logger.info(
            f"{len(sampler)} batches in an epoch, {100 * self.padding_share:.1f} % of their tokens are padding"
        )
        return self._loader_of(dataset, sampler, "training")

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The summary of a run says how much of its batches was padding."""
        if "train_runtime" in logs and self.padding_share is not None:
            logs["train_padding_share"] = round(self.padding_share, 4)
        super().log(logs, *args, **kwargs)

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
        """As in Transformers, per target token of all processes and accumulated batches whatever the model does, and
        keeps the terms of a training step for the next log."""
        labels = inputs.get("labels")
        if labels is None and model.training and self.compute_loss_func is None and "labels" in self.label_names:
            raise ValueError(
                f"the training batches hold {', '.join(inputs)} and no labels: tokenize both sides of the training "
                "set, as preprocess_pairs does"
            )
        if labels is None or self.compute_loss_func is not None:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        elif not model.training:  # without smoothing, so that runs with and without it can be compared
            outputs = model(**inputs)
            loss = outputs["loss"]
        elif self._is_ours(model):
            loss, outputs = self._loss_of_ours(model, inputs, num_items_in_batch)
        else:
            loss, outputs = self._loss_of_others(model, inputs, labels, num_items_in_batch)
        share = self._auxiliary_share
        if model.training and share < 1.0:
            loss = loss - (1.0 - share) * self._auxiliary_loss(model, outputs, num_items_in_batch)
        if model.training:
            self.keep_terms(outputs, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _is_ours(self, model: nn.Module) -> bool:
        """Whether the model divides its loss by `num_items_in_batch`, and smooths it. Others, stock Marian for one,
        take the argument and do not, so that accumulated batches would count several times."""
        return getattr(self.accelerator.unwrap_model(model), "can_skip_logits", False)

    def _loss_of_ours(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
    ) -> tuple[Tensor, Any]:
        """All terms of the loss by the model itself; the translation loss smoothed if that is wanted."""
        counted = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs, **counted, skip_logits=self._skips_logits, loss_smoothing=self._smoothing)
        return outputs["loss"] * self._loss_factor(num_items_in_batch), outputs

    def _loss_of_others(
        self, model: nn.Module, inputs: dict[str, Any], labels: Tensor, num_items_in_batch: Tensor | int | None
    ) -> tuple[Tensor, Any]:
        """The translation loss of the logits, smoothed if that is wanted."""
        bare: Any = self.accelerator.unwrap_model(model)
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = bare.prepare_decoder_input_ids_from_labels(labels=labels)
        outputs = model(**inputs)
        total = nn.functional.cross_entropy(
            outputs["logits"].flatten(0, 1).float(), labels.flatten(), reduction="sum", label_smoothing=self._smoothing
        )
        loss = total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)
        return loss * self._loss_factor(num_items_in_batch), outputs

    @property
    def _smoothing(self) -> float:
        return 0.0 if self.label_smoother is None else self.label_smoother.epsilon

    def _loss_factor(self, num_items_in_batch: Tensor | int | None) -> int:
        """Undoes that DDP takes the mean over processes of what is a sum over them."""
        return self.accelerator.num_processes if self.sums_over_processes(num_items_in_batch) else 1

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
        return auxiliary(outputs) * self._loss_factor(num_items_in_batch)
