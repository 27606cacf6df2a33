"""Evaluation of translation models in one pass: every source is encoded once, for its loss and its translation."""

import time
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from tqdm.auto import tqdm
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, denumpify_detensorize, has_length

from hf_capsule_mt.data.batches.dataset_lengths import most_tokens, pair_lengths
from hf_capsule_mt.data.batches.token_batches import TokenBatchSampler
from hf_capsule_mt.modeling.translation_loop import evaluation_mode, generate

NO_LIMIT = 2**62


class TranslationEvaluation(Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] that evaluates translations in one pass.

    With `predict_with_generate`, `evaluate` and `predict` translate in batches of like length, longest first, and
    report `loss` (per target token over the whole set), `bleu` and `chrf` by sacreBLEU, whose signatures are kept in
    `score_signatures`, and `translated_tokens_per_second`. The loss is the translation loss, without label smoothing.
    Where nothing says how long translations may be, it is twice their source and 50 tokens.
    A `compute_metrics` of yours is called beside them with predictions and labels, padded to the longest sentence,
    not to `max_length`. Where that would leave out something that was asked for, the stock evaluation runs: without
    labels, in half precision (`bf16_full_eval`, `fp16_full_eval`), under FSDP and DeepSpeed, and with
    `include_for_metrics`, `batch_eval_metrics` or `preprocess_logits_for_metrics`.
    """

    args: Any
    model: Any
    processing_class: Any
    _loader_of: Any  # of CapsuleSeq2SeqTrainer

    score_signatures: dict[str, str]

    def _evaluates_translations(self, dataset: Any) -> bool:
        args = self.args
        left_out = (
            args.bf16_full_eval,
            args.fp16_full_eval,
            args.prediction_loss_only,
            args.include_for_metrics,
            args.batch_eval_metrics,
            getattr(self, "preprocess_logits_for_metrics", None),
            getattr(self, "is_deepspeed_enabled", False),
            getattr(self, "is_fsdp_enabled", False),
        )
        encodes = hasattr(self.model, "get_encoder") and self.model.config.is_encoder_decoder
        if not args.predict_with_generate or not encodes or any(left_out):
            return False
        sized = not isinstance(dataset, IterableDataset) and has_length(dataset) and len(dataset) > 0
        return bool(sized and "labels" in dataset[0] and "input_ids" in dataset[0])

    def _sorted_loader(self, dataset: Any) -> DataLoader:
        """Batches of like length, the same share of them for every process."""
        lengths, budget = pair_lengths(dataset), getattr(self.args, "max_tokens_per_batch", None)
        sampler = TokenBatchSampler(
            lengths,
            max_tokens=NO_LIMIT if budget is None else max(budget, most_tokens(lengths)),
            max_pairs=self.args.per_device_eval_batch_size if budget is None else None,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
            longest_first=True,
        )
        return self._loader_of(dataset, sampler, "evaluation")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        dataset = self._named_eval_dataset(eval_dataset)
        if dataset is None or not self._evaluates_translations(dataset):
            return super().get_eval_dataloader(eval_dataset)
        return self._sorted_loader(dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        if not self._evaluates_translations(test_dataset):
            return super().get_test_dataloader(test_dataset)
        return self._sorted_loader(test_dataset)

    def _named_eval_dataset(self, given: Any) -> Any:
        known: Any = self.eval_dataset
        if isinstance(given, str):
            return known[given]
        return known if given is None else given

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As in Transformers; in one pass where the batches are ours."""
        sampler = getattr(dataloader, "batch_sampler", None)
        if not isinstance(sampler, TokenBatchSampler):
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        started = time.perf_counter()
        rows: list[tuple[int, list[int], list[int]]] = []  # position in the data set, translation, reference
        totals = [0.0, 0.0, 0.0]  # loss, target tokens, translated tokens
        shown = tqdm(
            zip(sampler, dataloader, strict=True),
            desc=description,
            total=len(sampler),
            unit="batch",
            disable=self.args.disable_tqdm or not self.args.should_log,
        )
        with evaluation_mode(self.model), torch.no_grad():
            for indices, inputs in shown:
                tokens = self._translate_batch(self._prepare_inputs(inputs), totals)
                if len(tokens) != len(indices):
                    raise ValueError(
                        f"{len(tokens)} translations of {len(indices)} sentences: num_return_sequences must be 1 here"
                    )
                rows += zip(indices, tokens.tolist(), inputs["labels"].tolist(), strict=True)
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        if self.accelerator.num_processes > 1:
            rows = gather_object(rows)
            totals = [sum(values) for values in zip(*gather_object([totals]), strict=True)]
        rows.sort()
        loss, targets, translated = totals
        seconds = time.perf_counter() - started
        metrics = {"loss": loss / max(targets, 1.0), "translated_tokens_per_second": translated / seconds}
        predictions, references = self._padded([row[1] for row in rows]), self._padded([row[2] for row in rows], -100)
        metrics |= self._scores(predictions, references)
        if self.compute_metrics is not None:
            found = self.compute_metrics(EvalPrediction(predictions.numpy(), references.numpy()))
            metrics |= denumpify_detensorize(found)  # a checkpoint keeps them as JSON
        prefix = f"{metric_key_prefix}_"
        named = {key if key.startswith(prefix) else prefix + key: value for key, value in metrics.items()}
        return EvalLoopOutput(predictions.numpy(), references.numpy(), named, len(rows))

    def _translate_batch(self, inputs: dict[str, Any], totals: list[float]) -> Tensor:
        """Translations `[B, T]`; adds to `totals` the loss of the batch, its target tokens and those translated."""
        model, labels = self.model, inputs["labels"]
        source = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        with self.compute_loss_context_manager():
            encoded = model.get_encoder()(**source, return_dict=True)
            outputs = model(
                encoder_outputs=encoded, attention_mask=source.get("attention_mask"), labels=labels, return_dict=True
            )
            count = int((labels != -100).sum())
            totals[0] += float(outputs.loss) * count
            totals[1] += count
            settings = dict(getattr(self, "_gen_kwargs", {}))
            settings = {name: value for name, value in settings.items() if value is not None}
            # Last: beam search repeats what is in the encoder's output.
            inputs = {"encoder_outputs": encoded, "attention_mask": source.get("attention_mask")}
            tokens = generate(model, inputs, source["input_ids"].shape[1], settings)
        totals[2] += int((tokens[:, 1:] != self._padding).sum())
        return tokens

    @property
    def _padding(self) -> int:
        return int(self.model.config.pad_token_id or 0)

    def _padded(self, rows: list[list[int]], value: int | None = None) -> Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, True, self._padding if value is None else value)

    def _scores(self, predictions: Tensor, references: Tensor) -> dict[str, float]:
        """BLEU and chrF of the decoded tokens, where there is a tokenizer."""
        if self.processing_class is None or not hasattr(self.processing_class, "batch_decode"):
            return {}
        from hf_capsule_mt.evaluation.scores import corpus_scores

        references = references.masked_fill(references == -100, self._padding)
        hypotheses, wanted = (
            self.processing_class.batch_decode(ids, skip_special_tokens=True) for ids in (predictions, references)
        )
        scores = corpus_scores(hypotheses, wanted)
        self.score_signatures = {"bleu": scores.bleu_signature, "chrf": scores.chrf_signature}
        return {"bleu": scores.bleu, "chrf": scores.chrf}
