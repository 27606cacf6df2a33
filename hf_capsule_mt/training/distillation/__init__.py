"""Sequence-level knowledge distillation: a training corpus as a teacher translates it."""

from hf_capsule_mt.training.distillation.distillation import Distillation

__all__ = ["Distillation"]
