"""A small network that estimates the coverage difference ratio of a source and a translation.

Legend: `B` pairs, `S` source tokens, `T` tokens of the translation, `D` size, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NO_TOKEN = -1e4  # similarity with padding: its sigmoid is 0


class Estimate(NamedTuple):
    """CDR, and the parts that it is made of."""

    ratio: Tensor  # [B]
    reference_logits: Tensor  # [B, S], of the probability that the reference covers a source token
    coverage_logits: Tensor  # [B, S], of the probability that the translation covers it


class CoverageEstimator(nn.Module):
    """`CDR' = sum_i w_i c_i / sum_i w_i`, the ratio of expectations of `|C_ref and C_gen|` and `|C_ref|`.

    `w_i` is the probability that the reference, which is not seen, covers source token i; `c_i` that the translation
    covers it. Both are read from vectors of tokens with their neighbours. `c_i` depends on the translation by its most
    similar token: `c_i = sigmoid(a max_j (s_i . t_j) / sqrt(D) + b_i)`.
    """

    def __init__(self, source_vocabulary: int, target_vocabulary: int, size: int) -> None:
        super().__init__()
        # One row more: for tokens that a tokenizer does not have, but a model with a larger output layer may write.
        self.source_embedding = nn.Embedding(source_vocabulary + 1, size)
        self.target_embedding = nn.Embedding(target_vocabulary + 1, size)
        self.source_neighbours = nn.Conv1d(size, size, 3, padding=1, bias=False)
        self.target_neighbours = nn.Conv1d(size, size, 3, padding=1, bias=False)
        self.reference_head = nn.Linear(size, 1)
        self.bias_head = nn.Linear(size, 1)
        self.sharpness = nn.Parameter(torch.tensor(2.0))
        self.scale = math.sqrt(size)

    @torch.no_grad()
    def begin_with(self, sources: Tensor, targets: Tensor, probabilities: Tensor) -> None:
        """Begin with a table `p(target | source)`: entries `[E]`. A source token gets the mean vector of its targets.

        Vectors of different targets are random and nearly orthogonal, so the similarity of a source and a target token
        begins near `p(target | source) sqrt(D)`.
        """
        rows = self.target_embedding.weight[targets] * probabilities.unsqueeze(1)
        self.source_embedding.weight.zero_().index_add_(0, sources, rows)
        for layer in (self.source_neighbours, self.target_neighbours):
            layer.weight.mul_(0.1)

    def forward(self, sources: Tensor, targets: Tensor) -> Estimate:
        """`sources` `[B, S]` and `targets` `[B, T]`; -1 is padding. A pair without target tokens covers nothing."""
        is_source, is_target = sources >= 0, targets >= 0
        source = token_vectors(self.source_embedding, self.source_neighbours, sources, is_source)  # [B, S, D]
        target = token_vectors(self.target_embedding, self.target_neighbours, targets, is_target)  # [B, T, D]
        similarity = source @ target.transpose(1, 2) / self.scale  # [B, S, T]
        best = similarity.masked_fill(~is_target.unsqueeze(1), NO_TOKEN).amax(dim=2)  # [B, S]
        coverage_logits = self.sharpness * best + self.bias_head(source).squeeze(2)
        reference_logits = self.reference_head(source).squeeze(2)
        weights = reference_logits.sigmoid() * is_source  # [B, S]
        total = weights.sum(dim=1)
        ratio = (weights * coverage_logits.sigmoid()).sum(dim=1) / total.clamp(min=1e-6)
        # Without source tokens nothing can be missed, as in `coverage_ratio`.
        return Estimate(torch.where(is_source.any(dim=1), ratio, 1.0), reference_logits, coverage_logits)


def token_vectors(embedding: nn.Embedding, neighbours: nn.Conv1d, tokens: Tensor, is_token: Tensor) -> Tensor:
    """Vectors of tokens with their neighbours, `[B, S, D]`, 0 for padding."""
    rows = embedding(tokens.clamp(min=0, max=embedding.num_embeddings - 1)) * is_token.unsqueeze(2)
    context = neighbours(rows.transpose(1, 2)).transpose(1, 2)
    return (rows + F.gelu(context)) * is_token.unsqueeze(2)


def padded(sentences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """`[B, S]`, int64, -1 for padding; at least one column."""
    width = max(1, max(map(len, sentences), default=1))
    rows = [[*sentence, *[-1] * (width - len(sentence))] for sentence in sentences]
    return torch.tensor(rows, dtype=torch.int64, device=device).view(len(sentences), width)


def estimator_loss(estimate: Estimate, in_reference: Tensor, in_translation: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and the CDR of each pair, `[B]`, which it teaches.

    `in_reference` and `in_translation` `[B, S]`: what they cover, 0 or 1, -1 for padding. The loss is the squared
    error of CDR and, because the aligner says it too, the cross-entropy of which tokens are covered.
    """
    is_source = in_reference >= 0
    reference, translation = in_reference.clamp(min=0).float(), in_translation.clamp(min=0).float()
    total = reference.sum(dim=1)  # [B]
    ratios = torch.where(total > 0, (reference * translation).sum(dim=1) / total.clamp(min=1), 1.0)
    loss = F.mse_loss(estimate.ratio, ratios)
    for logits, labels in ((estimate.reference_logits, reference), (estimate.coverage_logits, translation)):
        # Without a token in the translation the logit is far below 0: it is right, and has no gradient.
        entropy = F.binary_cross_entropy_with_logits(logits.clamp(-30, 30), labels, reduction="none")
        loss = loss + (entropy * is_source).sum() / is_source.sum().clamp(min=1)
    return loss, ratios
