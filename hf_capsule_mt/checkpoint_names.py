"""Errors for checkpoint names: a missing folder, or a Hub name that cannot be loaded."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from transformers.utils import cached_file

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@contextmanager
def reading_checkpoint(name: str | PathLike[str]) -> Iterator[None]:
    """Put this around code that loads the checkpoint `name`. If no such folder exists, the error says so first."""
    if Path(name).exists():
        yield
        return
    missing = f"{name}: no such folder"
    if not HUB_NAME.fullmatch(str(name)) or str(name).startswith("."):
        raise OSError(f"{missing}; give a checkpoint folder, or a name on the Hub such as owner/model")
    try:
        yield
    except OSError as error:
        raise OSError(f"{missing}, and loading it from the Hub failed: {error}") from error


def check_checkpoint(name: str | PathLike[str]) -> None:
    """Raises an `OSError` unless `name` is a folder, or a name on the Hub with a config.json."""
    with reading_checkpoint(name):
        if not Path(name).is_dir():
            cached_file(name, "config.json")
