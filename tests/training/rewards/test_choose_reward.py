"""Which reward a name makes, and what it asks for."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
from reward_pairs import SIZE, WordTokenizer, make_pairs

from hf_capsule_mt.training.rewards import RewardSettings, TokenPairs, make_reward
from hf_capsule_mt.training.rewards.choose import vocabularies
from hf_capsule_mt.training.rewards.settings import REWARDS


def test_every_name_makes_its_reward(tmp_path: Path) -> None:
    settings = RewardSettings(workers=0, cache_folder=str(tmp_path))
    for name in REWARDS:
        with closing(make_reward(name, WordTokenizer(), settings, torch.nn.Linear(1, 1), make_pairs(20))) as reward:
            assert reward.name == name


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="reward='rouge': must be one of bleu, chrf, cdr, learned_cdr"):
        make_reward("rouge", WordTokenizer())


@pytest.mark.parametrize("name", ["cdr", "learned_cdr"])
def test_coverage_asks_for_training_pairs(name: str) -> None:
    with pytest.raises(ValueError, match=rf"reward='{name}': .*TokenPairs.from_dataset"):
        make_reward(name, WordTokenizer())


@pytest.mark.parametrize(("source", "target", "side"), [(SIZE, 43, "source"), (3, SIZE, "target")])
def test_pairs_of_another_tokenizer_are_an_error(source: int, target: int, side: str) -> None:
    with pytest.raises(ValueError, match=f"a {side} of the training pairs has token {SIZE}, and the tokenizer has"):
        make_reward("cdr", WordTokenizer(), pairs=TokenPairs([[source]], [[target]]))


def test_a_tokenizer_with_two_vocabularies() -> None:
    tokenizer = WordTokenizer()
    assert vocabularies(tokenizer) == (SIZE, SIZE)
    vars(tokenizer).update(separate_vocabs=True, target_encoder={"a": 0, "b": 1})
    assert vocabularies(tokenizer) == (SIZE, 2)
