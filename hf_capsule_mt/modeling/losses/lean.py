"""The losses that need little memory, for the installed package; checkpoints do not carry them."""

from hf_capsule_mt.modeling.losses.blocks_of_logits import summed_cross_entropy_in_blocks
from hf_capsule_mt.modeling.losses.seq2seq import LEAN
from hf_capsule_mt.modeling.losses.vocabulary import cross_entropy_of_states, log_partition_in_blocks


def add_lean_losses() -> None:
    """Tell `seq2seq.py` of them."""
    LEAN["summed_cross_entropy"] = summed_cross_entropy_in_blocks
    LEAN["log_partition"] = log_partition_in_blocks
    LEAN["loss_of_states"] = cross_entropy_of_states
