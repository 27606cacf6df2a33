"""Training: the trainer, recipes, distillation, the small recipe on the synthetic pair, and what came of it."""

from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments
from hf_capsule_mt.training.distillation import Distillation
from hf_capsule_mt.training.parameter_groups import NewParameterLearningRate
from hf_capsule_mt.training.past_future_report import PastFutureReport, past_future_report
from hf_capsule_mt.training.recipe import Recipe, parse_recipe
from hf_capsule_mt.training.recipe_run import run_recipe
from hf_capsule_mt.training.small_recipe import LossCurve, SmallTask, small_config, small_task, train_small
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer

__all__ = [
    "CapsuleSeq2SeqTrainer",
    "CapsuleSeq2SeqTrainingArguments",
    "Distillation",
    "LossCurve",
    "NewParameterLearningRate",
    "PastFutureReport",
    "Recipe",
    "SmallTask",
    "parse_recipe",
    "past_future_report",
    "run_recipe",
    "small_config",
    "small_task",
    "train_small",
]
