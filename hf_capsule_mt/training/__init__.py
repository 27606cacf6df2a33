"""Training: the trainer for losses of several terms, distillation, the small recipe on the synthetic pair."""

from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments
from hf_capsule_mt.training.distillation import Distillation
from hf_capsule_mt.training.past_future_report import PastFutureReport, past_future_report
from hf_capsule_mt.training.small_recipe import LossCurve, SmallTask, small_config, small_task, train_small
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer

__all__ = [
    "CapsuleSeq2SeqTrainer",
    "CapsuleSeq2SeqTrainingArguments",
    "Distillation",
    "LossCurve",
    "PastFutureReport",
    "SmallTask",
    "past_future_report",
    "small_config",
    "small_task",
    "train_small",
]
