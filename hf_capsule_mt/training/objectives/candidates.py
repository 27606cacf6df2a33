"""The candidates of a batch: the sampled translations of each sentence, without duplicates.

Legend: `B` sentences, `N` candidates of all of them, `S` source and `T` target positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Words = tuple[int, ...]


@dataclass
class Candidates:
    """Different translations, with their end token if they have ended, in the order of their sentences."""

    words: list[Words] = field(default_factory=list)  # N
    sentence_of: list[int] = field(default_factory=list)  # N
    counts: list[int] = field(default_factory=list)  # N, how often each was sampled
    place_of: dict[tuple[int, Words], int] = field(default_factory=dict)  # of a sentence and a translation

    def add(self, sentence: int, words: Words, count: int = 1) -> int:
        """Count a translation of a sentence; returns its place. With the count 0 it is there without being sampled."""
        place = self.place_of.setdefault((sentence, words), len(self.words))
        if place == len(self.words):
            self.words.append(words)
            self.sentence_of.append(sentence)
            self.counts.append(0)
        self.counts[place] += count
        return place

    def __len__(self) -> int:
        return len(self.words)


def source_words(input_ids: Tensor, attention_mask: Tensor | None, padding: int) -> list[list[int]]:
    """The real tokens of each source `[B, S]`, with its end token."""
    mask = input_ids.ne(padding) if attention_mask is None else attention_mask.bool()
    rows = zip(input_ids.tolist(), mask.tolist(), strict=True)
    return [[word for word, real in zip(*row, strict=True) if real] for row in rows]


def reference_words(labels: Tensor) -> list[list[int]]:
    """The real tokens of each row of labels `[B, T]`, with its end token."""
    return [[word for word in row if word != -100] for row in labels.tolist()]


def without_end(words: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The words of a sentence up to its end token."""
    first = next((place for place, word in enumerate(words) if word in ends), len(words))
    return list(words[:first])


def padded_labels(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Labels `[N, T]`, padded with -100. No row may be empty."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, True, -100).to(device)
