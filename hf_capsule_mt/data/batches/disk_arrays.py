"""Arrays in files without a name, for what there is one of for every pair of a corpus.

They take disk, not memory: the operating system keeps in memory what is in use of them, counts that as the process's
own (RSS), and takes it back when others need it. They are gone with the array, or with the process, however it ends.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK_BYTES = 1 << 16


def array_on_disk(count: int, dtype: Any, *folders: str | Path) -> np.ndarray:
    """`[count]` zeros in a file in the first of the folders that takes it, at last in the one for temporary files.

    Folders are made where they are missing. A disk without room is noticed here, where the file system can reserve
    room, not when the array is written.
    """
    size = count * np.dtype(dtype).itemsize
    failed: list[str] = []
    for folder in (*folders, None):
        try:
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # the mapping outlives it
                _reserve(file.fileno(), size)
                return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=(count,)))
        except OSError as error:
            number = error.errno
            failed.append(f"{'the folder for temporary files' if folder is None else folder}: {error.strerror}")
    raise OSError(
        number, f"{size:,} bytes are needed on disk for a while; make room, or set TMPDIR ({'; '.join(failed)})"
    )


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate") and size:
        return os.posix_fallocate(file, 0, size)
    while (left := size - os.fstat(file).st_size) > 0:
        os.write(file, bytes(min(left, _BLOCK_BYTES)))
    return None
