"""Training: the trainer and its arguments, checkpoints, and distillation."""

from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments
from hf_capsule_mt.training.callbacks.stop_on_signal import TrainingInterrupted
from hf_capsule_mt.training.distillation import Distillation
from hf_capsule_mt.training.parameter_groups import NewParameterLearningRate
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer

__all__ = [
    "CapsuleSeq2SeqTrainer",
    "CapsuleSeq2SeqTrainingArguments",
    "Distillation",
    "NewParameterLearningRate",
    "TrainingInterrupted",
]
