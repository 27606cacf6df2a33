"""Words of the source that were probably left out or translated twice, for a threshold that the visitor moves."""

from typing import Any, NamedTuple

from hf_capsule_mt.analysis import Coverage
from hf_capsule_mt.demo.texts import InputError

# The demo begins with more warnings than the pipeline, which has 0.5: here a person looks at each of them.
LOWEST, HIGHEST, DEFAULT, STEP = 0.05, 0.95, 0.4, 0.05
LEFT_OUT, TWICE = "left out", "translated twice"
# Share of the omissions that have a warning, by threshold: model_cards/coverage, words deleted from references.
WARNED_OMISSIONS = {0.3: 0.82, 0.4: 0.68, 0.5: 0.47}
FALSE_WARNINGS = {0.3: 0.61, 0.4: 0.29, 0.5: 0.08}  # a complete reference


class WordWarning(NamedTuple):
    """A word of the source with a score above the threshold; `place` counts from 0."""

    place: int
    word: str
    problem: str
    score: float


def checked_threshold(value: Any) -> float:
    """A threshold of the slider. Raises InputError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not LOWEST <= value <= HIGHEST:
        raise InputError(f"The threshold must be a number from {LOWEST} to {HIGHEST}.")
    return float(value)


def highest_score(coverage: Coverage) -> WordWarning | None:
    """The highest score, of whichever problem; None without words."""
    scores = [
        WordWarning(place, word, problem, values[place])
        for problem, values in ((LEFT_OUT, coverage.untranslated), (TWICE, coverage.repeated))
        for place, word in enumerate(coverage.words)
    ]
    return max(scores, key=lambda one: one.score, default=None)


def word_warnings(coverage: Coverage, threshold: float) -> list[WordWarning]:
    """The warnings in the order of the source; none if the model's scores are not reliable."""
    if not coverage.is_reliable:
        return []
    warnings = []
    for place, word in enumerate(coverage.words):
        for problem, scores in ((LEFT_OUT, coverage.untranslated), (TWICE, coverage.repeated)):
            if scores[place] > threshold:
                warnings.append(WordWarning(place, word, problem, scores[place]))
    return warnings
