"""The record of a checkpoint: sizes and digests of its files, which show damage."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hf_capsule_mt.training.checkpoints.files import FILE_RECORD, STATE, checkpoints_to_resume, step_in_name

LARGE = 64 * 2**20  # bytes; of larger files only the size and both ends are compared
END = 2**20  # bytes


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint was changed after it was written."""


def write_file_record(folder: Path, step: int) -> None:
    """Write down the size and the digest of every file of a checkpoint. Call it last."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != FILE_RECORD)
    entries = {path.relative_to(folder).as_posix(): _entry(path) for path in files}
    (folder / FILE_RECORD).write_text(json.dumps({"step": step, "files": entries}, indent=1), encoding="utf-8")


def damage(folder: Path) -> str | None:
    """The fault of a checkpoint and the file that has it; None if it is sound.

    The name of a checkpoint must have its step. If `files.json` is missing, only `trainer_state.json` is checked too.
    """
    record: dict[str, Any] = {"step": step_in_name(folder), "files": {}}
    if (folder / FILE_RECORD).is_file():
        try:
            record = dict(json.loads((folder / FILE_RECORD).read_text(encoding="utf-8")))
            files = dict(record["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{FILE_RECORD} cannot be read ({error})"
        for name, expected in files.items():
            if wrong := _difference(folder / name, expected):
                return wrong if name != STATE else _wrong_state(folder, record["step"]) or wrong
    return _wrong_state(folder, record["step"]) or wrong_step_problem(folder)


def wrong_step_problem(folder: Path) -> str | None:
    """The problem of a `checkpoint-N` that was written at another step than `N`; None for all others."""
    for name, key in ((FILE_RECORD, "step"), (STATE, "global_step")):
        try:
            written = int(json.loads((folder / name).read_text(encoding="utf-8"))[key])
        except (OSError, ValueError, KeyError, TypeError):  # `damage` reports such a file
            continue
        if 0 <= step_in_name(folder) != written:
            return f"its name says step {step_in_name(folder)} and {name} step {written}; name it checkpoint-{written}"
    return None


def check_checkpoint(folder: Path) -> None:
    """Raise [`DamagedCheckpoint`] unless the checkpoint is as it was written."""
    if wrong := damage(folder):
        raise DamagedCheckpoint(f"{folder} is damaged: {wrong}")


def last_good_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is not damaged."""
    return next((path for path in reversed(checkpoints_to_resume(folder)) if damage(path) is None), None)


def set_damaged_aside(folder: Path) -> list[str]:
    """Rename damaged checkpoints that are newer than the last good one; returns a message for each.

    Without a good one they stay.
    """
    good, messages = last_good_checkpoint(folder), list[str]()
    for path in checkpoints_to_resume(folder):
        if good is not None and step_in_name(path) > step_in_name(good):
            aside = path.with_name(f"damaged-{path.name}")
            messages.append(f"{path} is damaged: {damage(path)}. It is called {aside.name} now")
            path.rename(aside)
    return messages


def _entry(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size > LARGE:
            digest.update(file.read(END))
            file.seek(-END, 2)
        while block := file.read(END):
            digest.update(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _difference(path: Path, expected: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != expected["bytes"]:
        return f"{path.name} has {size:,} bytes, {expected['bytes']:,} were written"
    if _entry(path) != expected:
        return f"{path.name} was changed after it was written"
    return None


def _wrong_state(folder: Path, step: int) -> str | None:
    try:
        step_in_state = json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{STATE} cannot be read ({error})"
    if step >= 0 and step_in_state != step:
        return f"{STATE} says step {step_in_state}, the checkpoint is of step {step}"
    return None
