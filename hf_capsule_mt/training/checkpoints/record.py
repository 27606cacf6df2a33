"""What a checkpoint says of its own files, written last: whether they still are what was written."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hf_capsule_mt.training.checkpoints.files import FILE_RECORD, STATE, checkpoints_to_resume, step_in_name

LARGE = 64 * 2**20  # bytes; of larger files the first and the last of them are read, and the size is compared
END = 2**20


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is not what was written."""


def write_file_record(folder: Path, step: int) -> None:
    """Write down the size and the digest of every file of a checkpoint."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != FILE_RECORD)
    described = {path.relative_to(folder).as_posix(): _described(path) for path in files}
    (folder / FILE_RECORD).write_text(json.dumps({"step": step, "files": described}, indent=1), encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, and in which file; None where nothing is. Of checkpoints without a record only
    the state is looked at, and of each that its name is that of its step."""
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
    return _wrong_state(folder, record["step"]) or renamed(folder)


def renamed(folder: Path) -> str | None:
    """What to say of a `checkpoint-N` that was written at another step than `N`; None for all others."""
    for name, key in ((FILE_RECORD, "step"), (STATE, "global_step")):
        try:
            written = int(json.loads((folder / name).read_text(encoding="utf-8"))[key])
        except (OSError, ValueError, KeyError, TypeError):  # `damage` says what is wrong with such a file
            continue
        if 0 <= step_in_name(folder) != written:
            return f"its name says step {step_in_name(folder)} and {name} step {written}; name it checkpoint-{written}"
    return None


def check_checkpoint(folder: Path) -> None:
    """Raise [`DamagedCheckpoint`] unless training can go on from the checkpoint as it was written."""
    if wrong := damage(folder):
        raise DamagedCheckpoint(f"{folder} is damaged: {wrong}")


def last_good_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files are what was written."""
    return next((path for path in reversed(checkpoints_to_resume(folder)) if damage(path) is None), None)


def set_damaged_aside(folder: Path) -> list[str]:
    """Rename the checkpoints that are damaged and newer than the last good one; returns what to say about it. Without
    a good one they stay."""
    good, said = last_good_checkpoint(folder), list[str]()
    for path in checkpoints_to_resume(folder):
        if good is not None and step_in_name(path) > step_in_name(good):
            aside = path.with_name(f"damaged-{path.name}")
            said.append(f"{path} is damaged: {damage(path)}. It is called {aside.name} now")
            path.rename(aside)
    return said


def _described(path: Path) -> dict[str, Any]:
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
    found = path.stat().st_size
    if found != expected["bytes"]:
        return f"{path.name} has {found:,} bytes, {expected['bytes']:,} were written"
    if _described(path) != expected:
        return f"{path.name} was changed after it was written"
    return None


def _wrong_state(folder: Path, step: int) -> str | None:
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{STATE} cannot be read ({error})"
    if step >= 0 and found != step:
        return f"{STATE} says step {found}, the checkpoint is of step {step}"
    return None
