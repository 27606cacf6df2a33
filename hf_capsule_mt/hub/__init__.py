"""Checkpoints for the Hugging Face Hub: their code, and a proof that they load by it."""

from hf_capsule_mt.hub.verification import verify

__all__ = ["verify"]
