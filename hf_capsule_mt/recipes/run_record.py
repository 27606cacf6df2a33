"""`run.json` in the folder of a run: with which settings, and on what, which of its steps were trained.

A run that is taken up again begins a new segment. Whether a recipe may take up the run is decided by it too.
"""

import json
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch

from hf_capsule_mt.recipes.fields import RecipeTrainingArguments
from hf_capsule_mt.recipes.output_folder import RECORD, RESULTS, check_new_run
from hf_capsule_mt.recipes.recipe import Recipe
from hf_capsule_mt.recipes.run_settings import (
    LENGTH,
    SCORING,
    WITHOUT_EFFECT,
    Changes,
    Settings,
    changed_settings,
    effective_settings,
    extends,
    refused_changes,
    schedule,
)
from hf_capsule_mt.training.checkpoints.files import last_checkpoint, named_checkpoint, put_in_place, step_in_name
from hf_capsule_mt.training.checkpoints.record import (
    DamagedCheckpoint,
    check_checkpoint,
    last_good_checkpoint,
    set_damaged_aside,
)
from hf_capsule_mt.training.versions import versions


@dataclass
class RunRecord:
    """The segments of a run, each with the settings of a start, and the step at which the run was finished."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    finished_at: int | None = None

    @property
    def settings(self) -> Settings:
        """Those of the last start."""
        return self.segments[-1]["settings"]

    def begin(self, step: int, settings: Settings, arguments: RecipeTrainingArguments) -> None:
        """A start from the checkpoint of `step`: what came after it, if anything, does not count."""
        self.segments = [segment for segment in self.segments if segment["from_step"] < step]
        if self.segments:
            self.segments[-1]["to_step"] = step
        self.segments.append(
            {
                "from_step": step,
                "to_step": None,
                "learning_rate": schedule(settings),
                "processes": settings["processes"],
                "device": device_name(arguments),
                "versions": versions(),
                "date": now(),
                "settings": settings,
            }
        )

    def finish(self, step: int) -> None:
        """The run is at its end. A start that trained no step, and only scored anew, leaves no segment."""
        last = self.segments[-1]
        last["to_step"] = self.finished_at = step
        if last["from_step"] < step or len(self.segments) == 1:
            return
        before = self.segments[-2]["settings"]
        if not changed_settings(before, last["settings"]).keys() - {*SCORING, *WITHOUT_EFFECT}:
            del self.segments[-1]
            before |= {name: last["settings"][name] for name in SCORING}

    def summary(self) -> list[dict[str, Any]]:
        """The segments for `results.json`: in the place of all settings, those with an effect that differ from the
        segment before."""
        found = []
        for before, segment in zip([None, *self.segments], self.segments, strict=False):
            changes = {} if before is None else changed_settings(before["settings"], segment["settings"])
            kept = {name: value for name, value in segment.items() if name != "settings"}
            changed = {name: list(values) for name, values in changes.items() if name not in WITHOUT_EFFECT}
            found.append(kept | {"changed": changed})
        return found

    def write(self, folder: Path) -> None:
        part = folder / f"{RECORD}.part"
        part.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")
        part.replace(folder / RECORD)


@dataclass
class Start:
    """How a start of a run begins.

    Args:
        record: of the run, with the segment that begins.
        checkpoint: that training goes on from; None for a new run.
        nothing_to_do: whether the run is finished and stays as it is.
        without_effect: settings that were changed and change nothing in a finished run.
    """

    record: RunRecord
    checkpoint: str | None = None
    nothing_to_do: bool = False
    without_effect: list[str] = field(default_factory=list)


def begin_run(recipe: Recipe) -> Start:
    """What is to be done in the output folder of a recipe; a run there of another recipe is an error, and so are files
    that no run of ours has written and this one would replace."""
    arguments, folder = recipe.training, Path(str(recipe.training.output_dir))
    put_in_place(folder)
    for line in set_damaged_aside(folder) if arguments.resume_from_last_good else ():
        print(line, flush=True)
    checkpoint, home = _checkpoint(arguments, folder)
    if checkpoint is None or Path(checkpoint).resolve().parent != folder.resolve():
        check_new_run(folder)
    settings, record = effective_settings(recipe), read_record(home)
    if checkpoint is None and (record is None or record.finished_at is None):
        return _begun(RunRecord(), None, settings, arguments)
    if record is None:
        raise ValueError(
            f"{home} holds {Path(str(checkpoint)).name} and no {RECORD}, so what it was trained with is not known: "
            f"choose another output_dir, such as {free_folder(folder)}"
        )
    if not arguments.resume and arguments.resume_from_checkpoint is None:
        held = Path(checkpoint).name if checkpoint else "a finished run"
        raise ValueError(
            f"{folder} holds {held}, and resume is off: choose another output_dir, such as {free_folder(folder)}, or "
            "remove the old run"
        )
    step = step_in_name(Path(checkpoint)) if checkpoint else 0
    finished = arguments.resume_from_checkpoint is None and record.finished_at is not None
    finished = finished and step <= int(record.finished_at or 0) and (folder / RESULTS).is_file()
    reached = int(record.finished_at or 0) if finished else step
    before = [segment for segment in record.segments if segment["from_step"] < max(reached, 1)][-1]["settings"]
    _check_same_run(before, settings, folder, finished)
    changed = changed_settings(before, settings).keys()
    if finished and not extends(before, settings) and not changed & {*SCORING}:
        return Start(record, checkpoint, True, sorted(changed - {*WITHOUT_EFFECT}))
    if checkpoint is None:
        raise ValueError(
            f"{folder} holds a finished run of {reached} steps and no checkpoint to go on from: choose another "
            f"output_dir, such as {free_folder(folder)}"
        )
    return _begun(record, checkpoint, settings, arguments)


def _begun(record: RunRecord, checkpoint: str | None, settings: Settings, arguments: RecipeTrainingArguments) -> Start:
    if checkpoint is not None:
        _check_files(Path(checkpoint))
    record.begin(step_in_name(Path(checkpoint)) if checkpoint else 0, settings, arguments)
    return Start(record, checkpoint)


def _checkpoint(arguments: RecipeTrainingArguments, folder: Path) -> tuple[str | None, Path]:
    """The checkpoint that is named, or the last one in the output folder; and the folder of its run."""
    if arguments.resume_from_checkpoint is not None:
        named = named_checkpoint(arguments.resume_from_checkpoint)
        if step_in_name(Path(named)) < 0:
            raise ValueError(f"resume_from_checkpoint={named!r}: its name must be checkpoint-N, as it was written")
        return named, Path(named).resolve().parent
    last = last_checkpoint(folder)
    return None if last is None else named_checkpoint(str(last)), folder


def _check_same_run(before: Settings, now: Settings, folder: Path, finished: bool) -> None:
    refused = refused_changes(before, now)
    why = "a run of another recipe"
    if finished and not refused and not extends(before, now):
        changes = changed_settings(before, now)
        if changes.keys() & {*SCORING}:  # scored anew; what acts in training alone would be a false record
            refused = {name: changes[name] for name in changes if name not in (*SCORING, *WITHOUT_EFFECT, *LENGTH)}
            why = "a finished run, and these act in training alone"
    if refused:
        raise ValueError(f"{folder} holds {why}:\n{_lines(refused)}\n{_fix(refused, now, folder)}")


def _lines(changes: Changes) -> str:
    return "\n".join(f"  {name} was {before!r}, now {now!r}" for name, (before, now) in sorted(changes.items()))


def _fix(refused: Changes, now: Settings, folder: Path) -> str:
    longer = "; a run can be made longer, not shorter" if refused.keys() & {*LENGTH} else ""
    return f"Choose another output_dir, such as {free_folder(folder)}, or go on with the settings as they were{longer}"


def free_folder(folder: Path) -> Path:
    """A folder beside it that is not there."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(name for name in names if not name.exists())


def read_record(folder: Path) -> RunRecord | None:
    """The record of the run in a folder; None where there is no run."""
    try:
        content = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        record = RunRecord(list(content["segments"]), content["finished_at"])
        dict(record.settings)
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{folder / RECORD} cannot be read ({error}): put it back from a copy, or choose another output_dir, such "
            f"as {free_folder(folder)}"
        ) from error


def _check_files(checkpoint: Path) -> None:
    try:
        check_checkpoint(checkpoint)
    except DamagedCheckpoint as error:
        good = last_good_checkpoint(checkpoint.parent)
        offer = (
            f"--resume_from_last_good goes on from {good}" if good else "no other one is whole, begin anew elsewhere"
        )
        raise DamagedCheckpoint(f"{error}; {offer}") from error


def device_name(arguments: RecipeTrainingArguments) -> str:
    if arguments.device.type == "cuda":
        return torch.cuda.get_device_name(arguments.device)
    return f"CPU, {platform.machine()}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
