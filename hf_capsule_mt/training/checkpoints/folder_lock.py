"""A lock on a folder: two runs never write to the same one."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

if sys.platform != "win32":
    import fcntl

HOLDER = "_holder"  # names the process with the lock; pushes to the Hub leave out names that begin with _
_DESCRIPTORS: set[int] = set()


class FolderLock:
    """A context that one process at a time can enter. The operating system frees the lock of a dead process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._descriptor, self._signed = folder, -1, False

    def __enter__(self) -> "FolderLock":
        if sys.platform == "win32":
            raise OSError(f"{self.folder} cannot be locked, Windows has no fcntl: use Linux, macOS or WSL")
        self._descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise ValueError(
                f"another run is writing to {self.folder}: {holder(self.folder)}. Wait for it, stop it, or write to "
                "another folder"
            ) from None
        _DESCRIPTORS.add(self._descriptor)
        return self

    def sign(self) -> None:
        """Write down which process has the lock, for the error message of another run."""
        self._signed = True
        since = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"process": os.getpid(), "machine": socket.gethostname(), "since": since}
        (self.folder / HOLDER).write_text(json.dumps(content), encoding="utf-8")

    def __exit__(self, *_: object) -> None:
        if self._signed:
            (self.folder / HOLDER).unlink(missing_ok=True)
        _DESCRIPTORS.discard(self._descriptor)
        os.close(self._descriptor)


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Raise a ValueError if another run is writing to `folder`; the lock of a killed process is free."""
    with FolderLock(folder) as lock:
        lock.sign()
        yield


def holder(folder: Path) -> str:
    """Which process has the lock, as far as it is known."""
    try:
        content = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return "process {process} on {machine}, since {since}".format(**content)
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just started"


def _close_in_child() -> None:
    """A forked worker process would keep the lock for some seconds after its parent was killed."""
    for descriptor in _DESCRIPTORS:
        with suppress(OSError):
            os.close(descriptor)
    _DESCRIPTORS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
