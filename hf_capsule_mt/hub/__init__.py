"""Checkpoints for the Hugging Face Hub: code export, verification, model cards, and conversion from Marian."""

from hf_capsule_mt.hub.export import export_checkpoint
from hf_capsule_mt.hub.marian import MARIAN_FAMILIES, convert_marian
from hf_capsule_mt.hub.model_card import model_card, names_on_hub, write_model_card
from hf_capsule_mt.hub.verification import verify

__all__ = [
    "MARIAN_FAMILIES",
    "convert_marian",
    "export_checkpoint",
    "model_card",
    "names_on_hub",
    "verify",
    "write_model_card",
]
