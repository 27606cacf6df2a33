"""Comparing settings: a results file that keeps every run, and tables of means over seeds."""

import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def run_jobs(run_one: Callable[[Any], Run], jobs: Iterable[Any], processes: int) -> Iterator[Run]:
    """What `run_one` returns for each of the jobs as they end, so many at a time; one at a time in this process."""
    if processes == 1:
        yield from map(run_one, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_one, jobs)


class StudyResults:
    """The runs of a study in one JSON file, written whole or not at all after each of them."""

    def __init__(self, path: Path, command: str) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}
        self.content["command"] = command

    @property
    def runs(self) -> list[Run]:
        return self.content["runs"]

    @property
    def current(self) -> list[Run]:
        """The runs that no later one has taken the place of."""
        return [run for run in self.runs if "superseded" not in run]

    def done(self, settings: dict[str, Any]) -> set[tuple[str, int]]:
        """Setting and seed of the runs made with these `settings` of the study."""
        return {(run["setting"], run["seed"]) for run in self.current if run["settings"] == settings}

    def supersede(self, settings: dict[str, Any], jobs: list[tuple[str, int]], why: str) -> None:
        """The runs of these settings and seeds stay in the file and count no more."""
        for run in self.current:
            if run["settings"] == settings and (run["setting"], run["seed"]) in jobs:
                run["superseded"] = why

    def add(self, run: Run) -> None:
        self.runs.append(run)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n")
        part.replace(self.path)

    def blocks(self) -> list[tuple[dict[str, Any], list[Run]]]:
        """The runs grouped by the `settings` of the study, in the order in which these were first used."""
        found: list[tuple[dict[str, Any], list[Run]]] = []
        for run in self.current:
            block = next((runs for settings, runs in found if settings == run["settings"]), None)
            if block is None:
                found.append((run["settings"], [run]))
            else:
                block.append(run)
        return found


def spread(rows: list[Run], key: str, digits: int) -> str:
    """The mean over runs, the single values in brackets."""
    values = [row[key] for row in rows]
    return f"{statistics.mean(values):.{digits}f} ({', '.join(f'{value:.{digits}f}' for value in values)})"
