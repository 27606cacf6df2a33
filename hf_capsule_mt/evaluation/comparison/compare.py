"""Compares systems by their scores, with tests over sentences and over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_capsule_mt.evaluation.comparison.differences import comparison_warnings, setting_differences
from hf_capsule_mt.evaluation.comparison.record import (
    Comparison,
    MetricRow,
    RunRow,
    SentenceTests,
    SystemRow,
    SystemSeedTest,
)
from hf_capsule_mt.evaluation.comparison.systems import Run, System, group_runs
from hf_capsule_mt.evaluation.scoring.metric import CorpusMetric, Counts, check_translations, reference_sets
from hf_capsule_mt.evaluation.scoring.translation_scores import make_metrics
from hf_capsule_mt.evaluation.significance.seed_tests import seed_test
from hf_capsule_mt.evaluation.significance.sentence_tests import (
    BOOTSTRAP_SAMPLES,
    RANDOMIZATION_TRIALS,
    approximate_randomization,
    paired_bootstrap,
    sign_test,
)

TESTS = ("bootstrap", "randomization", "sign")
_SAME_SCORE = 0.005  # a recorded score is shown with two decimals


@dataclass(frozen=True)
class SentenceTestOptions:
    """Which tests over sentences run, and with how many samples."""

    tests: Sequence[str] = TESTS
    bootstrap_samples: int = BOOTSTRAP_SAMPLES
    trials: int = RANDOMIZATION_TRIALS
    show_progress: bool = False

    def __post_init__(self) -> None:
        unknown = [test for test in self.tests if test not in TESTS]
        if unknown:
            raise ValueError(f"tests={unknown[0]!r}: must be among {', '.join(TESTS)}")
        for name in ("bootstrap_samples", "trials"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


@dataclass
class ScoredRun:
    """A run with its scores, and the counts of each sentence by metric where there are translations."""

    run: Run
    scores: dict[str, float]
    references: list[list[str]] | None = None
    counts: dict[str, Counts] = field(default_factory=dict)


def compare_systems(
    systems: Sequence[System | Run],
    references: Sequence[str] | Sequence[Sequence[str]] | None = None,
    metrics: Sequence[str] = ("bleu", "chrf"),
    baseline: str | None = None,
    tests: Sequence[str] = TESTS,
    bootstrap_samples: int = BOOTSTRAP_SAMPLES,
    trials: int = RANDOMIZATION_TRIALS,
    show_progress: bool = False,
    **metric_options: Any,
) -> Comparison:
    """Compares two or more systems with a baseline.

    Args:
        systems: systems, or runs, which `group_runs` makes systems of.
        references: references for all runs, as in `score_translations`; None takes those of each run.
        metrics: names of metrics, as in `score_translations`.
        baseline: the name of the system that the others are compared with; None for the first one.
        tests: the tests over sentences, out of "bootstrap", "randomization" and "sign".
        bootstrap_samples: samples of the paired bootstrap.
        trials: trials of approximate randomisation.
        show_progress: whether progress bars are shown.
        metric_options: `lowercase`, `tokenizer`, `paper_tokenizer` and `language`, as in `score_translations`.

    A run without translations or without references takes part with its recorded scores that have the same signature.
    It takes part in tests over seeds, not in tests over sentences.
    """
    options = SentenceTestOptions(tests, bootstrap_samples, trials, show_progress)
    rows = _systems(systems)
    base = _baseline(rows, baseline)
    chosen = make_metrics(metrics, **metric_options)
    shared = None if references is None else reference_sets(references)
    warnings, notes = comparison_warnings(rows), list[str]()
    scored = {
        system.name: [_score_run(run, chosen, shared, warnings, show_progress) for run in system.runs]
        for system in rows
    }
    signatures = _signatures(chosen, [run for runs in scored.values() for run in runs])
    for runs in scored.values():
        for run in runs:
            _add_recorded_scores(run, chosen, signatures, warnings)
    sentence_tests: list[SentenceTests] = []
    seed_tests: list[SystemSeedTest] = []
    for system in rows:
        if system is not base:
            pair = _Pair(base, system, scored[base.name], scored[system.name], notes)
            sentence_tests += pair.sentence_tests(chosen, options)
            seed_tests += pair.seed_tests(chosen)
    if len(rows) > 2 and (sentence_tests or seed_tests):
        notes.append("p-values are not corrected for the number of comparisons")
    lengths = {len(run.run.translations or ()) for runs in scored.values() for run in runs if run.counts}
    return Comparison(
        baseline=base.name,
        metrics=tuple(MetricRow(one.name, signatures[one.name], one.higher_is_better) for one in chosen),
        systems=tuple(SystemRow(name, tuple(map(_run_row, runs))) for name, runs in scored.items()),
        sentences=lengths.pop() if len(lengths) == 1 else None,
        sentence_tests=tuple(sentence_tests),
        seed_tests=tuple(seed_tests),
        settings=tuple(setting_differences(rows)),
        warnings=tuple(dict.fromkeys(warnings)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _systems(systems: Sequence[System | Run]) -> list[System]:
    runs = [run for system in systems for run in (system.runs if isinstance(system, System) else [system])]
    groups = {system.name: [run.name for run in system.runs] for system in systems if isinstance(system, System)}
    if len(groups) < sum(isinstance(system, System) for system in systems):
        raise ValueError("two systems have the same name: give one of them another name")
    rows = group_runs(runs, groups)
    if len(rows) < 2:
        names = ", ".join(run.name for run in runs) or "none"
        raise ValueError(f"one system ({names}) cannot be compared: give runs of at least two systems")
    return rows


def _baseline(systems: list[System], name: str | None) -> System:
    for system in systems:
        if name is None or name == system.name or (len(system.runs) == 1 and name == system.runs[0].name):
            return system
    raise ValueError(f"baseline={name!r}: must be one of {', '.join(system.name for system in systems)}")


def _score_run(
    run: Run, metrics: list[CorpusMetric], references: list[list[str]] | None, warnings: list[str], progress: bool
) -> ScoredRun:
    """Scores the translations of a run, if it has translations and references."""
    own = None if run.references is None else reference_sets(run.references)
    sets = own if references is None else references
    if run.translations is None or sets is None:
        return ScoredRun(run, {})
    try:
        check_translations(run.translations, sets)
    except ValueError as error:
        raise ValueError(f"{run.name}: {error}") from error
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


def _signatures(metrics: list[CorpusMetric], runs: list[ScoredRun]) -> dict[str, str]:
    """The signature of each metric: as computed, else the first recorded one."""
    signatures = {}
    for metric in metrics:
        recorded = (run.run.scores[metric.name].signature for run in runs if metric.name in run.run.scores)
        computed = any(metric.name in run.counts for run in runs)
        signatures[metric.name] = metric.signature() if computed else next(recorded, "")
    return signatures


def _add_recorded_scores(
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


def _run_row(scored: ScoredRun) -> RunRow:
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


@dataclass
class _Pair:
    """A baseline and a system with their scored runs."""

    baseline: System
    system: System
    baseline_runs: list[ScoredRun]
    system_runs: list[ScoredRun]
    notes: list[str]

    def paired_runs(self) -> list[tuple[ScoredRun, ScoredRun]]:
        """The runs with the same seed; or the only runs of both."""
        if len(self.baseline_runs) == len(self.system_runs) == 1:
            return [(self.baseline_runs[0], self.system_runs[0])]
        by_seed = {run.run.seed: run for run in self.baseline_runs if run.run.seed is not None}
        return [(by_seed[run.run.seed], run) for run in self.system_runs if run.run.seed in by_seed]

    def sentence_tests(self, metrics: list[CorpusMetric], options: SentenceTestOptions) -> list[SentenceTests]:
        if not options.tests:
            return []
        tests = []
        for base, run in self.paired_runs():
            reason = _reason_against_tests(base, run)
            if reason:
                self.notes.append(f"no tests over sentences of {run.run.name} and {base.run.name}: {reason}")
                continue
            tests += [self._test(metric, base, run, options) for metric in metrics]
        return tests

    def _test(
        self, metric: CorpusMetric, base: ScoredRun, run: ScoredRun, options: SentenceTestOptions
    ) -> SentenceTests:
        from tqdm.auto import tqdm

        counts = base.counts[metric.name], run.counts[metric.name]
        results: dict[str, Any] = {}
        if np.array_equal(*counts):
            self.notes.append(
                f"no p-value for {metric.name} of {run.run.name} and {base.run.name}: they agree on each sentence"
            )
        else:
            samples = options.bootstrap_samples * ("bootstrap" in options.tests)
            samples += options.trials * ("randomization" in options.tests)
            with tqdm(
                desc=f"{metric.name}, {run.run.name}", total=samples, unit="sample", disable=not options.show_progress
            ) as bar:
                if "bootstrap" in options.tests:
                    results["bootstrap"] = paired_bootstrap(
                        metric, *counts, samples=options.bootstrap_samples, advance=bar.update
                    )
                if "randomization" in options.tests:
                    results["randomization"] = approximate_randomization(
                        metric, *counts, trials=options.trials, advance=bar.update
                    )
            if "sign" in options.tests:
                results["sign"] = sign_test(metric, *counts)
        difference = run.scores[metric.name] - base.scores[metric.name]
        seed = run.run.seed if len(self.baseline_runs) > 1 or len(self.system_runs) > 1 else None
        return SentenceTests(self.system.name, self.baseline.name, seed, metric.name, difference, **results)

    def seed_tests(self, metrics: list[CorpusMetric]) -> list[SystemSeedTest]:
        if len(self.baseline_runs) == 1 and len(self.system_runs) == 1:
            return []
        seeds = [{run.run.seed for run in runs} for runs in (self.baseline_runs, self.system_runs)]
        common = seeds[0] & seeds[1] - {None}
        names = f"{self.system.name} and {self.baseline.name}"
        if len(common) < 2:
            seeds_in_common = f"only seed {common.pop()}" if common else "no seed"
            self.notes.append(f"no test over seeds of {names}: they have {seeds_in_common} in common")
            return []
        if seeds[0] != seeds[1]:
            self.notes.append(f"the test over seeds of {names} leaves out seeds that only one of them has")
        tests = []
        for metric in metrics:
            base, system = (
                {int(run.run.seed or 0): run.scores[metric.name] for run in runs if metric.name in run.scores}
                for runs in (self.baseline_runs, self.system_runs)
            )
            if len(base.keys() & system.keys()) > 1:
                test = seed_test(base, system)
                tests.append(SystemSeedTest(self.system.name, self.baseline.name, metric.name, test))
        return tests


def _reason_against_tests(base: ScoredRun, run: ScoredRun) -> str | None:
    """Why two runs cannot be compared sentence by sentence; None if they can."""
    for one in (run, base):
        if one.run.translations is None:
            return f"{one.run.name} has no file of translations"
        if one.references is None:
            return f"the corpus of {one.run.name} cannot be read here; give the references (--references)"
    if base.references != run.references:
        return "they have different references"
    if len(run.run.translations or ()) == 1:
        return "one sentence has no p-value"
    return None
