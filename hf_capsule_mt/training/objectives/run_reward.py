"""The reward of a run: the one that the arguments name, and its state in a checkpoint."""

from pathlib import Path
from typing import Any

from transformers.utils import logging

from hf_capsule_mt.training.objectives.model_access import has_two_vocabularies
from hf_capsule_mt.training.objectives.state_files import load_state
from hf_capsule_mt.training.processes import main_first
from hf_capsule_mt.training.rewards import RewardSettings, TokenPairs, make_reward
from hf_capsule_mt.training.rewards.reward import Reward

logger = logging.get_logger(__name__)


def named_reward(args: Any, tokenizer: Any, model: Any, pairs: Any) -> Reward:
    """The reward that the arguments name, for the model that trains; `pairs` is the tokenised training set."""
    if tokenizer is None:
        raise ValueError(
            f"reward={args.reward!r}: rewards read texts; give the trainer the tokenizer as processing_class, or a "
            "reward of your own"
        )
    settings = RewardSettings.from_mapping(args.reward_settings)
    reads_sources = args.reward in ("cdr", "learned_cdr")
    if reads_sources and has_two_vocabularies(model) and not getattr(tokenizer, "separate_vocabs", False):
        raise ValueError(
            f"reward={args.reward!r}: the model has two vocabularies, of {model.config.vocab_size} source and "
            f"{model.config.decoder_vocab_size} target tokens, and the tokenizer one; give the trainer a tokenizer "
            "with separate_vocabs, or use the reward bleu or chrf"
        )
    pairs = TokenPairs.from_dataset(pairs, tokenizer) if reads_sources else None
    with main_first():  # which writes the files that the others read
        return make_reward(
            args.reward, tokenizer, settings, model, pairs, budget=getattr(args, "max_tokens_per_batch", None)
        )


def load_reward(reward: Reward, checkpoint: Path, process: int) -> None:
    """Load the state of a reward from the checkpoint: that of this process, or of process 0 if there is none."""
    state = load_state(checkpoint, process)
    if state is None:
        state = load_state(checkpoint, 0)
        logger.warning(
            f"{checkpoint} has no reward of process {process}: "
            + ("that of process 0 is used" if state is not None else "a new one begins")
        )
    if state is not None:
        reward.load(state)
