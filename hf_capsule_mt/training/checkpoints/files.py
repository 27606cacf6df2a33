"""What the files of a checkpoint say: whether it is whole and was due, and of which run; and why there is none."""

import errno
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

UNFINISHED = "_unfinished_checkpoints"  # the Trainer's pushes to the Hub leave out names with this first character
REPLACED = "replaced"  # in it, the checkpoint of an earlier run whose name a whole one is about to take
STATE = "trainer_state.json"
RUNNING = "running_{}.json"  # of every process
FILE_RECORD = "files.json"  # sizes and digests of the others
POSIX = os.name == "posix"
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def step_in_name(checkpoint: Path) -> int:
    """`N` of `checkpoint-N`; -1 of another name."""
    number = checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    return int(number) if number.isdigit() else -1


def checkpoints_to_resume(folder: str | Path) -> list[Path]:
    """The checkpoints in `folder` that training can go on from, the oldest first, damaged ones among them."""
    found = [path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if step_in_name(path) >= 0]
    whole = [path for path in found if (path / STATE).is_file() or (path / FILE_RECORD).is_file()]
    return sorted(whole, key=step_in_name)


def last_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint in `folder` that training can go on from; None without any."""
    return next(reversed(checkpoints_to_resume(folder)), None)


def named_checkpoint(name: str) -> str:
    """`name`, if training can go on from it."""
    folder = Path(name)
    if not (folder / STATE).is_file() and not (folder / FILE_RECORD).is_file():
        raise ValueError(
            f"resume_from_checkpoint={name!r}: must be a checkpoint folder with {STATE}, such as "
            f"runs/model/{PREFIX_CHECKPOINT_DIR}-500"
        )
    if not any(True for pattern in ("optimizer*", "rng_state*") for _ in folder.glob(pattern)):
        raise ValueError(
            f"{name} has weights and no optimizer, as save_only_model=True writes it, so training cannot go on from "
            "it: set save_only_model=False, and begin anew, from these weights if you like, in another output_dir"
        )
    return name


def put_in_place(folder: str | Path) -> None:
    """Give the whole checkpoint its name for which a killed run had moved an older one away, and no more."""
    part = Path(folder) / UNFINISHED
    for path in part.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if (part / REPLACED).is_dir() else ():
        if not (Path(folder) / path.name).exists():
            with suppress(FileNotFoundError):  # another process of this run was faster
                path.rename(Path(folder) / path.name)


def running_state(folder: Path, process: int = 0) -> dict[str, Any]:
    """What a process of our trainers has written beside the checkpoint; empty if there is nothing."""
    file = folder / RUNNING.format(process)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def was_due(folder: Path) -> bool:
    """Whether the run was to write this checkpoint anyway; SIGTERM is what else it writes one for."""
    return running_state(folder).get("due", True)


def logged(folder: Path) -> list[dict[str, Any]]:
    """What the run had logged when it wrote the checkpoint."""
    try:
        return json.loads((folder / STATE).read_text(encoding="utf-8"))["log_history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: its {STATE} cannot be read ({error}): name the checkpoints you want") from error


def disk_is_full(error: BaseException | None) -> bool:
    """Whether that is why a file could not be written. Python says it by a number, safetensors has the number in its
    text, and torch.save only says that it failed to write."""
    while error is not None:
        text = str(error)
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            return True
        if isinstance(error, SafetensorError) and FULL_DISK & set(
            map(int, re.findall(r"(?:error|code:) (\d+)", text))
        ):
            return True
        if isinstance(error, RuntimeError) and re.search(r"PytorchStreamWriter failed writing|unexpected pos", text):
            return True
        error = error.__cause__ or error.__context__
    return False


def flush(folder: Path, files: bool = True) -> None:
    """To disk: what is in `folder`, and the lists of names. Nothing on Windows, where no folder can be opened: there
    a checkpoint outlives a killed process, not a power cut."""
    if not POSIX:
        return
    paths = list(folder.rglob("*")) if files else []
    for path in [*paths, folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
