"""How compared runs differ apart from their scores: settings, and what makes scores incomparable."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_capsule_mt.evaluation.comparison.systems import SEED_SETTINGS, System

DEFAULT = "default"  # the value of a setting that a run of the same family does not name
NOT_KNOWN = "not known"  # the value of a setting of a system without a record
ABSENT = "-"  # the value of a setting that another family does not have


@dataclass(frozen=True)
class SettingDifference:
    """A setting in which systems differ, with the value of each system."""

    name: str
    values: dict[str, str]


def setting_differences(systems: Sequence[System]) -> list[SettingDifference]:
    """The settings in which systems differ, by name. Seeds are left out.

    A setting that only some runs have is listed if one of their recipes gives it, or if it is a field of the
    configuration and all runs are of one family. Other settings come from another family, or from another release of
    a library, and are left out.
    """
    runs = [run for system in systems for run in system.runs if run.settings]
    one_family = len({run.settings.get("family") for run in runs}) == 1
    absent = DEFAULT if one_family else ABSENT
    by_recipe = {name for run in runs for name in run.recipe_settings}
    differences = []
    for name in sorted({name for run in runs for name in run.settings} - {*SEED_SETTINGS}):
        everywhere = all(name in run.settings for run in runs)
        if everywhere or name in by_recipe or (one_family and name.startswith("config.")):
            values = {run.name: run.settings.get(name, absent) for run in runs}
            differences.append(_difference(name, systems, values))
    for name in sorted({name for run in runs for name in run.environment}):
        if all(name in run.environment for run in runs):
            differences.append(_difference(name, systems, {run.name: run.environment[name] for run in runs}))
    return [difference for difference in differences if len({*difference.values.values()} - {NOT_KNOWN}) > 1]


def comparison_warnings(systems: Sequence[System]) -> list[str]:
    """What makes the scores or the speeds of systems incomparable: other data, vocabularies, steps or devices."""
    runs = [run for system in systems for run in system.runs]
    warnings = []
    for name in sorted({name for run in runs for name in run.data}):
        values = {run.name: run.data[name] for run in runs if name in run.data}
        warnings += _warning(f"the runs differ in their data, {name}", values)
    warnings += _warning("the runs differ in their vocabulary", {run.name: run.vocabulary for run in runs})
    warnings += _warning("the runs differ in their steps", {run.name: run.steps for run in runs})
    ablations = {run.name: run.settings.get("routing_ablation") for run in runs}
    ablated = [f"{name} ({run})" for run, name in ablations.items() if name is not None]
    if ablated:
        warnings.append(f"trained and scored with other assignments than those of routing: {', '.join(ablated)}")
    devices = {run.name: run.environment.get("device") for run in runs}
    return warnings + _warning("the runs were trained on different devices, so speeds cannot be compared", devices)


def one_seed_notes(systems: Sequence[System]) -> list[str]:
    """A note for trained systems with a single run: no test over sentences says what another seed would give."""
    names = [system.name for system in systems if len(system.runs) == 1 and system.runs[0].settings]
    if not names:
        return []
    return [f"one run each, so a difference may be that of their seeds; train with several: {', '.join(names)}"]


def _warning(text: str, values: dict[str, Any]) -> list[str]:
    by_value: dict[str, list[str]] = {}
    for run, value in values.items():
        if value is not None:
            by_value.setdefault(_value_text(value), []).append(run)
    if len(by_value) < 2:
        return []
    return [f"{text}: " + "; ".join(f"{value} ({', '.join(names)})" for value, names in by_value.items())]


def _difference(name: str, systems: Sequence[System], value_of_run: dict[str, Any]) -> SettingDifference:
    values = {}
    for system in systems:
        texts = dict.fromkeys(_value_text(value_of_run[run.name]) for run in system.runs if run.name in value_of_run)
        values[system.name] = " / ".join(texts) if texts else NOT_KNOWN
    return SettingDifference(name, values)


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
