"""The objectives of `reference.py` for the candidates of all sentences of a batch at once.

Legend: `B` sentences, `N` candidates of all of them.
"""

import torch
from torch import Tensor


def sums_by_sentence(values: Tensor, sentence_of: Tensor, sentences: int) -> Tensor:
    """`[B]`: the sum of `values` `[N]` over the candidates of each sentence."""
    return values.new_zeros(sentences).index_add(0, sentence_of, values)


def candidate_distribution(log_probabilities: Tensor, sentence_of: Tensor, sentences: int, sharpness: float) -> Tensor:
    """`Q` `[N]`, which sums to 1 over the candidates of a sentence. Shen et al. 2016, section 3."""
    scaled = sharpness * log_probabilities
    largest = scaled.new_full((sentences,), -torch.inf)
    largest = largest.scatter_reduce(0, sentence_of, scaled.detach(), "amax")
    powers = (scaled - largest[sentence_of]).exp()
    return powers / sums_by_sentence(powers, sentence_of, sentences)[sentence_of]


def minimum_risk_losses(
    log_probabilities: Tensor, rewards: Tensor, sentence_of: Tensor, sentences: int, sharpness: float
) -> Tensor:
    """`[B]`: `minimum_risk_loss` of `reference.py` for each sentence."""
    weights = candidate_distribution(log_probabilities, sentence_of, sentences, sharpness)
    expected = sums_by_sentence(weights.detach() * rewards, sentence_of, sentences)
    # The weights of a sentence sum to 1. So subtracting a constant from its rewards changes no gradient, and less is
    # lost to rounding.
    surrogate = sums_by_sentence(weights * (rewards - expected[sentence_of]), sentence_of, sentences) / sharpness
    return -(expected + surrogate - surrogate.detach())


def policy_gradient_losses(
    log_probabilities: Tensor,
    rewards: Tensor,
    counts: Tensor,
    baselines: Tensor,
    sentence_of: Tensor,
    sentences: int,
) -> Tensor:
    """`[B]`: `policy_gradient_loss` of `reference.py` for each sentence; `counts` and `baselines` are `[N]`.

    A candidate with the count 0 was not sampled and has no effect. A sentence without samples has the loss 0.
    """
    samples = sums_by_sentence(counts, sentence_of, sentences).clamp(min=1)
    weights = counts / samples[sentence_of]
    # 0 * inf would be NaN: a candidate that was not sampled may have any probability.
    effective = torch.where(counts > 0, log_probabilities, 0.0)
    surrogate = sums_by_sentence(weights * (rewards - baselines) * effective, sentence_of, sentences)
    mean_rewards = sums_by_sentence(weights * rewards, sentence_of, sentences)
    return -(mean_rewards + surrogate - surrogate.detach())


def means_of_other_samples(rewards: Tensor, counts: Tensor, sentence_of: Tensor, sentences: int) -> Tensor:
    """`[N]`: for each candidate the mean reward of the sentence's samples, without one sample of this candidate."""
    totals = sums_by_sentence(counts * rewards, sentence_of, sentences)
    samples = sums_by_sentence(counts, sentence_of, sentences)
    return (totals[sentence_of] - rewards) / (samples[sentence_of] - 1).clamp(min=1)


def some_rewards_differ(rewards: Tensor, sentence_of: Tensor, sentences: int) -> bool:
    """Whether two candidates of one sentence have different `rewards` `[N]`."""
    lowest = rewards.new_full((sentences,), torch.inf).scatter_reduce(0, sentence_of, rewards, "amin")
    highest = rewards.new_full((sentences,), -torch.inf).scatter_reduce(0, sentence_of, rewards, "amax")
    return bool((highest > lowest).any())
