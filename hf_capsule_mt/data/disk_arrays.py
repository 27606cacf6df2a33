"""Arrays in files without a name, for what there is one of for every pair of a corpus.

The operating system keeps in memory what is in use of them and takes it back when others need it; they take disk, not
memory, and are gone with the array, or with the process, however it ends.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 1 << 16  # bytes


def array_on_disk(count: int, dtype: Any, folder: str | Path | None = None) -> np.ndarray:
    """`[count]` zeros in a file in `folder`, by default the one for temporary files.

    A full disk is an `OSError` here, and not a crash when the array is written to.
    """
    size = count * np.dtype(dtype).itemsize
    file = tempfile.TemporaryFile(dir=folder)  # the array keeps it open
    try:
        for start in range(0, size, _BLOCK):
            file.write(bytes(min(_BLOCK, size - start)))
        file.flush()
    except OSError as error:
        with suppress(OSError):  # it would write what is left once more
            file.close()
        where = tempfile.gettempdir() if folder is None else os.fspath(folder)
        raise OSError(
            error.errno, f"{error.strerror}: {size:,} bytes are needed for a temporary file", where
        ) from None
    return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=(count,)))
