"""Files and folders that commands write: whole or not at all, never over a source, never over something else.

What is written lies beside its place, under a name with `.unfinished` at the end, and takes its own name last. A
process that is killed leaves the old or the new; the next command removes what it had not finished.
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
REPLACED = "replaced"  # where an old folder waits while the new one takes its name
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2 in Linux


def check_file(path: Place, sources: Iterable[Place] = (), overwrite: bool = False) -> None:
    """Raise a ValueError unless a file may be written there; nothing may be written into a folder that is read."""
    path, read = Path(path), [Path(source) for source in sources]
    folders = [source for source in read if source.is_dir()]
    _refuse_sources(path, [*read, *(file for folder in folders for file in folder.iterdir())])
    for folder in folders:
        if folder.resolve() in path.resolve().parents:
            raise ValueError(f"{path} lies in {folder}, which is read: name an output outside of it")
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
    """Raise a ValueError unless a folder may be written there; see `new_folder`."""
    path = Path(path)
    _refuse_sources(path, sources)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a folder")
    if path.is_mount():
        raise ValueError(f"{path} is a mount point, which cannot be replaced: name a folder inside it")
    there = sorted(path.iterdir()) if path.is_dir() else []
    if there and not overwrite:
        raise ValueError(f"{path} is not empty: name a new folder, or replace this one (--overwrite)")
    others = [one.name for one in there if not belongs(one)]
    if others:
        raise ValueError(f"{path} holds {others[0]}, which would be lost: name a new folder")


@contextmanager
def new_file(path: Place, sources: Iterable[Place] = (), overwrite: bool = False) -> Iterator[TextIO]:
    """A text file to write, which takes the name `path` at the end, or nothing if there is an error before.

    What `sources` name, files or folders, is never replaced, and an old file only with `overwrite`. A device or a pipe
    is written to as it is.
    """
    check_file(path, sources, overwrite)
    path = Path(path)
    if path.exists() and not path.is_file():  # before `resolve`, which makes a name of `/dev/stdout` that is none
        with open(path, "w", encoding="utf-8") as device:
            yield device
        return
    path = path.resolve()
    part = path.with_name(f".{path.name}.unfinished")
    handle = _open_alone(part, path)
    try:
        with os.fdopen(os.dup(handle), "w", encoding="utf-8") as file:
            file.truncate(0)  # what a command left that was killed
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, part)
        if os.name != "posix":  # where an open file keeps its name; elsewhere the lock is held until the end
            os.close(handle)
        part.replace(path)
        _to_disk(path.parent)
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
    """A folder to fill, which takes the name `path` at the end, or nothing if there is an error before.

    What `sources` name is never replaced, nor what holds it. An old folder is replaced only with `overwrite`, and only
    if all that it holds `belongs` to what is written here.
    """
    check_folder(path, sources, overwrite, belongs)
    path = Path(path).resolve()
    around = path.with_name(f".{path.name}.unfinished")
    lock = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open_alone(lock, path)
    try:
        _clear(around, path)
        part = around / path.name
        part.mkdir(parents=True)
        yield part
        for file in [*part.rglob("*"), part]:
            _to_disk(file)
        _put_in_place(part, path)
        _to_disk(path.parent)
    finally:
        _clear(around, path)
        if os.name != "posix":  # where an open file cannot be removed
            os.close(handle)
        lock.unlink(missing_ok=True)
        if os.name == "posix":
            os.close(handle)


def _put_in_place(part: Path, path: Path) -> None:
    """Give `part` the name `path`. The folder that had it before is beside it afterwards."""
    if not path.exists() or not any(path.iterdir()):
        if path.exists() and os.name == "nt":  # where a folder takes the place of no other
            path.rmdir()
        part.rename(path)
    elif not _exchange(part, path):
        path.rename(part.with_name(REPLACED))
        part.rename(path)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return rename is not None and rename(*names, RENAME_EXCHANGE) == 0


def _clear(around: Path, path: Path) -> None:
    """Remove what was not finished; give an old folder its name again if the new one has not taken it."""
    old = around / REPLACED
    if old.is_dir() and not path.exists():
        old.rename(path)
    shutil.rmtree(around, ignore_errors=True)


def _open_alone(part: Path, path: Path) -> int:
    """A handle of the file `part`, locked until it is closed: its holder alone writes `path`.

    Raises a ValueError while another process holds it. The lock of a dead process is free. Windows has no such lock.
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
        os.close(handle)  # another process has finished with this one, and removed it


def _refuse_sources(path: Path, sources: Iterable[Place]) -> None:
    for source in map(Path, sources):
        same = path.resolve() == source.resolve()
        if same or (path.exists() and source.exists() and path.samefile(source)):
            raise ValueError(f"{path} is read, so it cannot be written: name another output")
        if path.resolve() in source.resolve().parents and path.is_dir():
            raise ValueError(f"{path} holds {source}, which is read: name another output")


def _to_disk(path: Path) -> None:
    """Whatever happens to the machine later. Nothing on Windows, where no folder can be opened."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
