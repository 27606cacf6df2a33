"""Errors that tell a folder that is not there from a name on the Hub that cannot be reached."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from transformers.utils import cached_file

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@contextmanager
def reading_checkpoint(name: str | PathLike[str]) -> Iterator[None]:
    """Around what loads the checkpoint `name`: an error says first that there is no such folder, if there is none."""
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
    """Raise an OSError unless `name` is a folder, or a name on the Hub with a config.json."""
    with reading_checkpoint(name):
        if not Path(name).is_dir():
            cached_file(name, "config.json")
