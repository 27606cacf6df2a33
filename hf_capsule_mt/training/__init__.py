"""Training: the trainer for losses of several terms, and the small recipe on the synthetic pair."""

from hf_capsule_mt.training.small_recipe import LossCurve, SmallTask, small_config, small_task, train_small
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer

__all__ = ["CapsuleSeq2SeqTrainer", "LossCurve", "SmallTask", "small_config", "small_task", "train_small"]
