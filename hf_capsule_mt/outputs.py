"""Atomic output files and folders: an output appears only when it is complete, and never replaces an input.

An output is written beside its final path, under a name that ends in `.unfinished`, and renamed at the end. A killed
process leaves the old or the new output. The next command removes the unfinished one. (Training checkpoints:
`training/checkpoints/keeper.py`.)
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

Place = str | os.PathLike[str]
REPLACED = "replaced"  # name of the old folder while the new one takes its place
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2 in Linux


def check_file(path: Place, sources: Iterable[Place] = (), overwrite: bool = False) -> None:
    """Raises a `ValueError` unless the file `path` may be written. It must not be inside a source folder."""
    path, inputs = Path(path), [Path(source) for source in sources]
    folders = [source for source in inputs if source.is_dir()]
    _refuse_sources(path, [*inputs, *(file for folder in folders for file in folder.iterdir())])
    for folder in folders:
        if folder.resolve() in path.resolve().parents:
            raise ValueError(f"{path} is inside {folder}, which is an input: name an output outside of it")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file")
    if path.is_file() and path.stat().st_size > 0 and not overwrite:
        raise ValueError(f"{path} exists: name another file, or replace it (--overwrite)")


def check_folder(
    path: Place,
    sources: Iterable[Place] = (),
    overwrite: bool = False,
    belongs: Callable[[Path], bool] = lambda path: True,
) -> None:
    """Raises a `ValueError` unless the folder `path` may be written; see `new_folder`."""
    path = Path(path)
    _refuse_sources(path, sources)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a folder")
    if path.is_mount():
        raise ValueError(f"{path} is a mount point, which cannot be replaced: name a folder inside it")
    content = sorted(path.iterdir()) if path.is_dir() else []
    if content and not overwrite:
        raise ValueError(f"{path} is not empty: name a new folder, or replace this one (--overwrite)")
    others = [entry.name for entry in content if not belongs(entry)]
    if others:
        raise ValueError(f"{path} holds {others[0]}, which would be lost: name a new folder")


@contextmanager
def new_file(path: Place, sources: Iterable[Place] = (), overwrite: bool = False) -> Iterator[TextIO]:
    """A text file to write. It is renamed to `path` at the end, or removed after an error.

    Files and folders in `sources` are never replaced, and an old file only with `overwrite`. A device or a pipe is
    written to directly.
    """
    check_file(path, sources, overwrite)
    path = Path(path)
    if path.exists() and not path.is_file():  # before `resolve`, because `/dev/stdout` resolves to no real path
        with open(path, "w", encoding="utf-8") as device:
            yield device
        return
    path = path.resolve()
    part = path.with_name(f".{path.name}.unfinished")
    handle = _open_locked(part, path)
    try:
        with os.fdopen(os.dup(handle), "w", encoding="utf-8") as file:
            file.truncate(0)  # a killed command may have left content
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, part)
        if os.name != "posix":  # Windows cannot rename an open file; on POSIX the handle keeps the lock until the end
            os.close(handle)
        part.replace(path)
        _sync_to_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)
        if os.name == "posix":
            os.close(handle)


@contextmanager
def new_folder(
    path: Place,
    sources: Iterable[Place] = (),
    overwrite: bool = False,
    belongs: Callable[[Path], bool] = lambda path: True,
) -> Iterator[Path]:
    """A folder to fill. It is renamed to `path` at the end, or removed after an error.

    A folder in `sources`, or a folder around one, is never replaced. An old folder is replaced only with `overwrite`,
    and only if `belongs` is true for each entry in it.
    """
    check_folder(path, sources, overwrite, belongs)
    path = Path(path).resolve()
    unfinished = path.with_name(f".{path.name}.unfinished")
    lock = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open_locked(lock, path)
    try:
        _clean_up(unfinished, path)
        part = unfinished / path.name
        part.mkdir(parents=True)
        yield part
        for file in [*part.rglob("*"), part]:
            _sync_to_disk(file)
        _put_in_place(part, path)
        _sync_to_disk(path.parent)
    finally:
        _clean_up(unfinished, path)
        if os.name != "posix":  # Windows cannot remove an open file
            os.close(handle)
        lock.unlink(missing_ok=True)
        if os.name == "posix":
            os.close(handle)


def _put_in_place(part: Path, path: Path) -> None:
    """Renames `part` to `path`. An old folder at `path` ends up beside `part`."""
    if not path.exists() or not any(path.iterdir()):
        if path.exists() and os.name == "nt":  # Windows does not replace a folder, not even an empty one
            path.rmdir()
        part.rename(path)
    elif not _exchange(part, path):
        path.rename(part.with_name(REPLACED))
        part.rename(path)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one step. False if the system cannot do this."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return rename is not None and rename(*names, RENAME_EXCHANGE) == 0


def _clean_up(unfinished: Path, path: Path) -> None:
    """Removes the unfinished output. If `path` is missing, the old folder gets its name back first."""
    old = unfinished / REPLACED
    if old.is_dir() and not path.exists():
        old.rename(path)
    shutil.rmtree(unfinished, ignore_errors=True)


def _open_locked(part: Path, path: Path) -> int:
    """A handle of the file `part`, locked until it is closed. Only its holder writes `path`.

    Raises a `ValueError` while another process holds the lock. A dead process holds no lock. Windows has no such lock.
    """
    flags = os.O_WRONLY | os.O_CREAT
    if os.name != "posix":
        return os.open(part, flags)
    import fcntl

    while True:
        handle = os.open(part, flags, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if part.exists() and os.path.samestat(os.fstat(handle), part.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise ValueError(
                f"{path} is being written by another process: wait for it, or name another output"
            ) from None
        os.close(handle)  # another process has just removed this file; open a new one


def _refuse_sources(path: Path, sources: Iterable[Place]) -> None:
    for source in map(Path, sources):
        same = path.resolve() == source.resolve()
        if same or (path.exists() and source.exists() and path.samefile(source)):
            raise ValueError(f"{path} is an input, so it cannot be written: name another output")
        if path.resolve() in source.resolve().parents and path.is_dir():
            raise ValueError(f"{path} holds {source}, which is an input: name another output")


def _sync_to_disk(path: Path) -> None:
    """Flushes a file or folder to disk, so that it survives a power failure. Windows cannot open folders for this."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
