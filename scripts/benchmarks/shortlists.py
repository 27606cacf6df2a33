"""Shortlists for models with random weights: random words, as many as a shortlist of a real text has.

The number was measured on a real corpus (223,630 English-German pairs, vocabulary of 32,000, 100 translations of each
word). It is 1,067 words for a sentence of 25 tokens; see `model_cards/benchmarks/LOG.md`.
"""

from pathlib import Path
from typing import Any

import torch

from hf_capsule_mt import Shortlist

TRANSLATIONS = 100  # of each source word; reading them takes time too


def random_shortlist(model: Any, words: int, seed: int) -> Shortlist:
    """A shortlist that has the same `words` words for every source: the end token, and random ones."""
    vocabulary, end = model.config.vocab_size, model.config.eos_token_id
    if not 2 <= words < vocabulary:
        raise SystemExit(f"--shortlist-words {words}: must be 2 to {vocabulary - 1}, the words without the padding")
    generator = torch.Generator().manual_seed(seed)
    others = torch.tensor([word for word in range(vocabulary) if word not in (end, model.config.pad_token_id)])
    frequent = others[torch.randperm(len(others), generator=generator)[: words - 1]]
    table = frequent[torch.randint(words - 1, (vocabulary, TRANSLATIONS), generator=generator)]
    return Shortlist(table, frequent, [end], vocabulary, "random", False)


def write_vocabulary_map(shortlist: Shortlist, words: list[str], path: Path) -> None:
    """The same for CTranslate2: on each line a source word and its translations, on the first line frequent words."""

    def names(ids: list[int]) -> str:
        return " ".join(words[index] for index in ids)

    lines = [f"\t{names(shortlist.frequent.tolist())}"]
    table = shortlist.translations[: len(words)].tolist()
    lines += [f"{word}\t{names(ids)}" for word, ids in zip(words, table, strict=True)]
    path.write_text("\n".join(lines) + "\n")
