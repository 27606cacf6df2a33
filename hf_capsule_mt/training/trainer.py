"""The `Seq2SeqTrainer` for translation: batches by tokens, and losses of several terms."""

from pathlib import Path
from typing import Any

import datasets
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from hf_capsule_mt.data.batches.token_batches import TokenBatchSampler
from hf_capsule_mt.training.batch_maker import BatchMaker
from hf_capsule_mt.training.checkpoints.averaging import AveragingTrainer
from hf_capsule_mt.training.early_stopping import PatientEarlyStopping
from hf_capsule_mt.training.epoch_order import EpochOrder
from hf_capsule_mt.training.fsdp import embeddings_in_the_root_unit
from hf_capsule_mt.training.training_loss import Count, TrainingLoss, check_labels
from hf_capsule_mt.training.translation_evaluator import TranslationEvaluator


class CapsuleSeq2SeqTrainer(AveragingTrainer):
    """[`Seq2SeqTrainer`] for translation; takes the same arguments, works with any encoder-decoder.

    - Every term of the loss that the model returns (`lm_loss`, `bow_loss`, `bca_loss`) is logged beside `loss`, and
      the throughput in target tokens a second; see [`MeteredTrainer`].
    - With [`CapsuleSeq2SeqTrainingArguments`], `max_tokens_per_batch` fills batches by tokens, in any number of
      processes, `auxiliary_warmup_steps` raises the auxiliary losses to their weights, `early_stopping_patience` stops
      when BLEU no longer rises, `ema_decay` and `average_checkpoints` average weights, see [`AveragingTrainer`].
    - With `predict_with_generate`, evaluation is one pass over batches of like length and reports BLEU and chrF; see
      [`TranslationEvaluator`].
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
        if getattr(self.args, "skip_logits", False) and not getattr(self.model, "can_skip_logits", False):
            raise ValueError(
                f"skip_logits=True: {type(self.model).__name__} cannot compute its loss without logits, models of "
                "hf_capsule_mt can; leave it out"
            )
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        self.batches = BatchMaker(self.args, self.accelerator)
        self.training_loss = TrainingLoss(self.args, self.accelerator)
        self.evaluator = TranslationEvaluator(self.args, self.accelerator, sharded)
        self.add_callback(EpochOrder(self.batches.data_seed))
        patience = getattr(self.args, "early_stopping_patience", None)
        if patience is not None and self.args.metric_for_best_model == "bleu" and self.is_fsdp_enabled:
            raise ValueError(
                f"early_stopping_patience={patience}: under FSDP evaluation is Transformers' own and reports no BLEU; "
                'set metric_for_best_model="loss"'
            )
        if patience is not None:
            self.add_callback(PatientEarlyStopping(patience))

    # Transformers 5.17 to 5.23: no public method surrounds accelerate's `prepare`, which shards the model.
    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        with embeddings_in_the_root_unit(self.model, self.is_fsdp_enabled):
            return super()._prepare_for_training(*args, **kwargs)

    @property
    def padding_share(self) -> float | None:
        """The fraction of the tokens in training batches that is padding; None before batches by tokens are made."""
        return self.batches.padding_share

    @property
    def score_signatures(self) -> dict[str, str]:
        """The signatures of sacreBLEU for the scores of the last evaluation."""
        return self.evaluator.score_signatures

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

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        self.batches.add_to(logs)
        super().log(logs, *args, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Count = None
    ) -> Any:
        """As in Transformers, but per target token of all processes and accumulated batches with every model."""
        labels, own_loss = inputs.get("labels"), self.compute_loss_func is not None
        if model.training and not own_loss and "labels" in self.label_names:
            check_labels(inputs)
        processes = self.accelerator.num_processes if self.sums_over_processes(num_items_in_batch) else 1
        if labels is None or own_loss:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        else:
            loss, outputs = self.training_loss(model, inputs, num_items_in_batch, processes)
        if model.training:
            loss = self.training_loss.warmed_up(loss, model, outputs, self.state.global_step, processes)
            self.keep_terms(outputs, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def get_train_dataloader(self) -> DataLoader:
        """As in Transformers, or by tokens with `max_tokens_per_batch`."""
        if self.batches.token_budget is None:
            loader = super().get_train_dataloader()
        else:
            loader = self.batches.training_loader(*self._model_columns(self.train_dataset, "training"))
        self.batches.prepare_workers(loader)
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        sets: Any = self.eval_dataset
        dataset = sets[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        loader = self._translation_loader(sets if dataset is None else dataset)
        return super().get_eval_dataloader(eval_dataset) if loader is None else loader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        loader = self._translation_loader(test_dataset)
        return super().get_test_dataloader(test_dataset) if loader is None else loader

    def _translation_loader(self, dataset: Any) -> DataLoader | None:
        """Batches of like length to translate; None where the stock evaluation runs."""
        if self.preprocess_logits_for_metrics is not None or not self.evaluator.can_evaluate(self.model, dataset):
            return None
        return self.batches.evaluation_loader(*self._model_columns(dataset, "evaluation"))

    def _model_columns(self, dataset: Any, description: str) -> tuple[Any, Any]:
        """The data set and the collator, without the columns that the model does not take."""
        if isinstance(dataset, datasets.Dataset):
            return self._remove_unused_columns(dataset, description=description), self.data_collator
        return dataset, self._get_collator_with_removed_columns(self.data_collator, description=description)

    def evaluation_loop(self, dataloader: DataLoader, description: str, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in Transformers; one pass over batches that [`BatchMaker`] has made."""
        sampler = getattr(dataloader, "batch_sampler", None)
        if not isinstance(sampler, TokenBatchSampler):
            return super().evaluation_loop(dataloader, description, *args, **kwargs)
        batches, options = map(self._prepare_inputs, dataloader), getattr(self, "_gen_kwargs", {})
        calls = self.compute_loss_context_manager, self._end_prediction_step
        output = self.evaluator.translate(self.model, sampler, batches, options, *calls, description)
        prefix = args[2] if len(args) > 2 else kwargs.get("metric_key_prefix", "eval")
        return self.evaluator.score(output, self.model, self.processing_class, self.compute_metrics, prefix)

    def _end_prediction_step(self) -> None:
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
