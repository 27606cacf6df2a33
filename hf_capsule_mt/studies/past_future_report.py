"""Does a model know what it has translated? Measured on the synthetic pair, where the damage is known.

Legend: `T` target words and the end token, `S` source words.
"""

import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_capsule_mt.analysis import explain
from hf_capsule_mt.data import SyntheticPair
from hf_capsule_mt.data.synthetic.pairs import SentencePair
from hf_capsule_mt.evaluation import overlap_rates

STRETCHES = 5
THRESHOLD = 0.5  # of `Coverage.warnings`


@dataclass(frozen=True)
class PastFutureReport:
    """What `past_future_report` measures.

    Args:
        overlap_past, overlap_future: `r_OL^P` and `r_OL^F` of section 4.3, GDR.
        past_along, future_along: mean share of the source words in past and future in five stretches of the sentence,
            from its first word to its end token.
        deletion_auc: a constituent is deleted from the reference; chance that a source word of it has a higher
            `coverage.untranslated` than another source word of the corpus.
        repetition_auc: a constituent is repeated; the same for `coverage.repeated`.
        found: share of the damaged source words, of both kinds, that `coverage.warnings()` names.
        false_alarms: share of the source words of undamaged references that it names.
    """

    overlap_past: float
    overlap_future: float
    past_along: tuple[float, ...]
    future_along: tuple[float, ...]
    deletion_auc: float
    repetition_auc: float
    found: float
    false_alarms: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def past_future_report(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: int = 150, seed: int = 0, **limits: int
) -> PastFutureReport:
    """Measure a model with past and future on unseen sentences of the synthetic pair.

    `limits`, `max_words` and `min_words`, go to the synthetic pair; `seed` draws the sentences and what is damaged.
    """
    corpus = SyntheticPair(seed, "test", **limits)
    pairs = [corpus.pair(index) for index in range(sentences)]
    rates = overlap_rates(model, tokenizer, [pair.source for pair in pairs], [pair.target for pair in pairs])
    stretches: list[list[tuple[float, float]]] = [[] for _ in range(STRETCHES)]
    scores: dict[str, tuple[list[float], list[float]]] = {"untranslated": ([], []), "repeated": ([], [])}
    alarms: list[float] = []
    rng = random.Random(f"damage-{seed}")
    for pair in pairs:
        whole = explain(model, tokenizer, pair.source, pair.target)
        alarms += [max(both) for both in zip(whole.coverage.untranslated, whole.coverage.repeated, strict=True)]
        steps = len(whole.target_words)
        for step in range(steps):
            place = min(STRETCHES - 1, step * STRETCHES // steps)
            stretches[place].append((float(whole.past[step].mean()), float(whole.future[step].mean())))
        for kind, target, damaged in damage(pair, rng):
            coverage = explain(model, tokenizer, pair.source, target).coverage
            for index, score in enumerate(getattr(coverage, kind)):
                scores[kind][0 if index in damaged else 1].append(score)
    means = [np.mean(stretch, axis=0) for stretch in stretches]
    return PastFutureReport(
        overlap_past=rates.past,
        overlap_future=rates.future,
        past_along=tuple(float(mean[0]) for mean in means),
        future_along=tuple(float(mean[1]) for mean in means),
        deletion_auc=area_under_curve(*scores["untranslated"]),
        repetition_auc=area_under_curve(*scores["repeated"]),
        found=float(np.mean([score > THRESHOLD for positive, _ in scores.values() for score in positive])),
        false_alarms=float(np.mean([score > THRESHOLD for score in alarms])),
    )


def damage(pair: SentencePair, rng: random.Random) -> list[tuple[str, str, tuple[int, ...]]]:
    """The reference without one of its constituents, and with that one twice: (what the coverage calls it, target,
    source words of the constituent). None of a sentence with fewer than three."""
    parts = [part for part in pair.constituents if part.target and part.source]
    if len(parts) < 3:
        return []
    part = rng.choice(parts)
    words = pair.target.split()
    shorter = [word for index, word in enumerate(words) if index not in part.target]
    end = max(part.target) + 1
    longer = [*words[:end], *(words[index] for index in part.target), *words[end:]]
    return [("untranslated", " ".join(shorter), part.source), ("repeated", " ".join(longer), part.source)]


def area_under_curve(positive: list[float], negative: list[float]) -> float:
    """The chance that a positive example has the higher score, ties counting half: by ranks."""
    if not positive or not negative:
        raise ValueError("nothing to rank: give more sentences, with three constituents or more")
    values = np.concatenate([positive, negative])
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]  # from 1; equal values share the mean of theirs
    total = ranks[: len(positive)].sum() - len(positive) * (len(positive) + 1) / 2
    return float(total / (len(positive) * len(negative)))
