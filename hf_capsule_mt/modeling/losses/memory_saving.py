"""The losses that need little memory. Only the installed package uses them; checkpoints do not carry them."""

from hf_capsule_mt.modeling.losses.blocks_of_logits import summed_cross_entropy_in_blocks
from hf_capsule_mt.modeling.losses.seq2seq import MEMORY_SAVING
from hf_capsule_mt.modeling.losses.vocabulary import cross_entropy_of_states, log_partition_in_blocks


def use_memory_saving_losses() -> None:
    """Make `seq2seq.py` call them."""
    MEMORY_SAVING["summed_cross_entropy"] = summed_cross_entropy_in_blocks
    MEMORY_SAVING["log_partition"] = log_partition_in_blocks
    MEMORY_SAVING["loss_of_states"] = cross_entropy_of_states
