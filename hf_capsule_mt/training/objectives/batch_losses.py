"""The losses of a batch from its candidates, their log-probabilities and their rewards.

Legend: `B` sentences of a batch, `N` candidates of all of them, `S` source and `T` target positions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from hf_capsule_mt.modeling.translation_loop import length_batches
from hf_capsule_mt.training.objectives.arguments import GREEDY, MINIMUM_RISK, OTHER_SAMPLES
from hf_capsule_mt.training.objectives.candidate_batch import CandidateBatch, has_one_candidate
from hf_capsule_mt.training.objectives.candidates import padded_labels
from hf_capsule_mt.training.objectives.log_probabilities import translation_log_probabilities
from hf_capsule_mt.training.objectives.losses import (
    means_of_other_samples,
    minimum_risk_losses,
    policy_gradient_losses,
    some_rewards_differ,
)
from hf_capsule_mt.training.objectives.model_access import repeated
from hf_capsule_mt.training.objectives.statistics import RewardStatistics


def learned_log_probabilities(
    model: nn.Module, bare: Any, encoded: ModelOutput, mask: Tensor, batch: CandidateBatch, budget: int | None
) -> Tensor:
    """Log-probability of each learned candidate, in order. Computed in blocks of similar length."""
    words, learned = batch.candidates.words, batch.learned
    lengths = [mask.shape[1] + len(words[place]) for place in learned]
    values, order = [], []
    blocks = length_batches(lengths, max_tokens=budget)
    for block in blocks:
        places = [learned[index] for index in block]
        rows = torch.tensor([batch.candidates.sentence_of[place] for place in places], device=mask.device)
        labels = padded_labels([words[place] for place in places], mask.device)
        through = model if block is blocks[-1] else bare
        source = repeated(encoded, rows), mask.index_select(0, rows)
        values.append(translation_log_probabilities(through, bare, *source, labels).sum(dim=1))
        order += block
    places_of = torch.empty(len(order), dtype=torch.long)
    places_of[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(values)[places_of.to(mask.device)]


def batch_losses(
    args: Any,
    statistics: RewardStatistics,
    batch: CandidateBatch,
    rewards: Tensor,
    log_probabilities: Tensor,
    sentences: int,
) -> Tensor:
    """`[B]`; `rewards` are those of all candidates, `log_probabilities` those of the learned ones.

    Adds to the statistics what the rewards of the batch are like.
    """
    candidates, device = batch.candidates, rewards.device
    places = torch.tensor(batch.learned, device=device)
    counts = torch.tensor(candidates.counts, dtype=rewards.dtype, device=device)
    sentence_of = torch.tensor(candidates.sentence_of, device=device)
    if has_one_candidate(args):
        mean = statistics.running_mean()
        expected = rewards.mean() if mean is None else rewards.new_tensor(mean)
        differ = not torch.isclose(rewards, expected).all()
    else:
        differ = some_rewards_differ(rewards, sentence_of, sentences)
    statistics.add_rewards(rewards, counts, differ)
    lengths = torch.tensor([len(candidates.words[place]) for place in batch.learned], device=device)
    counted = counts[places]
    statistics.add(entropy=-(counted * log_probabilities.detach()).sum(), tokens=(counted * lengths).sum())
    chosen = rewards[places], sentence_of[places]
    if args.objective == MINIMUM_RISK:
        losses = minimum_risk_losses(log_probabilities, *chosen, sentences, args.risk_sharpness)
        statistics.add(expected=-losses.detach().sum(), sentences=sentences)
        return losses
    if args.reward_baseline == OTHER_SAMPLES:
        baselines = means_of_other_samples(rewards, counts, sentence_of, sentences)
    elif args.reward_baseline == GREEDY:
        baselines = rewards[torch.tensor(batch.greedy, device=device)][sentence_of]
    else:
        # The first step has no earlier one: it measures rewards and learns nothing from them.
        mean = statistics.running_mean()
        baselines = rewards if mean is None else torch.full_like(rewards, mean)
    return policy_gradient_losses(log_probabilities, chosen[0], counted, baselines[places], chosen[1], sentences)
