"""Runs with their scores: computed from translations, or recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from warnings import catch_warnings, simplefilter

from hf_capsule_mt.evaluation.comparison.record import RunRow
from hf_capsule_mt.evaluation.comparison.systems import Run
from hf_capsule_mt.evaluation.scoring.metric import CorpusMetric, Counts, check_translations, reference_sets

_SAME_SCORE = 0.005  # a recorded score is shown with two decimals


@dataclass
class ScoredRun:
    """A run with its scores, and the counts of each sentence by metric where there are translations."""

    run: Run
    scores: dict[str, float]
    references: list[list[str]] | None = None
    counts: dict[str, Counts] = field(default_factory=dict)


def score_run(
    run: Run, metrics: list[CorpusMetric], references: list[list[str]] | None, warnings: list[str], progress: bool
) -> ScoredRun:
    """Scores the translations of a run, if it has translations and references."""
    of_run = None if run.references is None else reference_sets(run.references)
    sets = of_run if references is None else references
    if run.translations is None or sets is None:
        return ScoredRun(run, {})
    try:
        with catch_warnings(record=True) as caught:
            simplefilter("always")
            check_translations(run.translations, sets)
    except ValueError as error:
        raise ValueError(f"{run.name}: {error}") from error
    warnings += [f"{run.name}: {warning.message}" for warning in caught]
    counts = {metric.name: metric.counts(run.translations, sets, progress) for metric in metrics}
    scores = {metric.name: metric.score_of(counts[metric.name].sum(axis=0)) for metric in metrics}
    for metric in metrics:
        recorded = run.scores.get(metric.name)
        if recorded is None or recorded.signature != metric.signature():
            continue
        if abs(recorded.score - scores[metric.name]) > _SAME_SCORE:
            warnings.append(
                f"{run.name}: its translations have {metric.name} {scores[metric.name]:.2f} and its record says "
                f"{recorded.score:.2f}; are these its translations and references?"
            )
    return ScoredRun(run, scores, sets, counts)


def signatures_of(metrics: list[CorpusMetric], runs: list[ScoredRun]) -> dict[str, str]:
    """The signature of each metric: as computed, else the first recorded one."""
    signatures = {}
    for metric in metrics:
        recorded = (run.run.scores[metric.name].signature for run in runs if metric.name in run.run.scores)
        computed = any(metric.name in run.counts for run in runs)
        signatures[metric.name] = metric.signature() if computed else next(recorded, "")
    return signatures


def add_recorded_scores(
    run: ScoredRun, metrics: list[CorpusMetric], signatures: Mapping[str, str], warnings: list[str]
) -> None:
    for metric in metrics:
        recorded = run.run.scores.get(metric.name)
        if metric.name in run.scores or recorded is None:
            continue
        if recorded.signature == signatures[metric.name]:
            run.scores[metric.name] = recorded.score
        else:
            warnings.append(
                f"{run.run.name}: its {metric.name} has another signature, {recorded.signature}, and is left out"
            )


def reference_warnings(runs: list[ScoredRun]) -> list[str]:
    """A warning if runs were scored against different references: then their scores cannot be compared."""
    groups: list[tuple[list[list[str]], list[str]]] = []
    for run in runs:
        if run.references is None:
            continue
        names = next((names for references, names in groups if references == run.references), None)
        if names is None:
            groups.append((run.references, [run.run.name]))
        else:
            names.append(run.run.name)
    if len(groups) < 2:
        return []
    return ["the runs were scored against different references: " + "; ".join(", ".join(names) for _, names in groups)]


def run_row(scored: ScoredRun) -> RunRow:
    run = scored.run
    return RunRow(
        name=run.name,
        seed=run.seed,
        scores=scored.scores,
        parameters=run.parameters,
        steps=run.steps,
        vocabulary=run.vocabulary,
        training_speed=run.training_speed,
        translation_speed=run.translation_speed,
        place=run.place,
    )
