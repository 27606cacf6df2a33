"""Errors for checkpoint names: a folder that is missing or incomplete, or a Hub name that cannot be loaded."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from transformers.utils import cached_file

CONFIGURATIONS = ("config.json", "adapter_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "source.spm")
SHIPPED = "model_cards"  # the folder of the repository with the shipped checkpoints
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@contextmanager
def reading_checkpoint(name: str | PathLike[str]) -> Iterator[None]:
    """Put this around code that loads the checkpoint `name`. If no such folder exists, the error says so first.

    A folder without a configuration or without a tokenizer is an error that names what the folder lacks.
    """
    if Path(name).exists():
        check_folder(Path(name))
        try:
            yield
        except (OSError, ValueError) as error:
            if "tokenizer" in str(error) and not any((Path(name) / file).exists() for file in TOKENIZER_FILES):
                raise OSError(f"{name} has no tokenizer: save it there with tokenizer.save_pretrained") from error
            raise
        return
    missing = f"{name}: no such folder"
    if Path(name).parts[:1] == (SHIPPED,):
        missing += f" ({SHIPPED}/ is in the repository of hf_capsule_mt, and not in the installed package)"
    if not HUB_NAME.fullmatch(str(name)) or str(name).startswith("."):
        raise OSError(f"{missing}; give a checkpoint folder, or a name on the Hub such as owner/model")
    try:
        yield
    except OSError as error:
        raise OSError(f"{missing}, and loading it from the Hub failed: {error}") from error


def check_folder(folder: Path) -> None:
    """Raises an `OSError` unless `folder` is a folder with the configuration of a model or of an adapter."""
    if not folder.is_dir():
        raise OSError(f"{folder} is a file: give the folder of a checkpoint")
    if not any((folder / file).is_file() for file in CONFIGURATIONS):
        raise OSError(f"{folder} is no checkpoint, because it has no config.json: give the folder of a trained model")


def check_checkpoint(name: str | PathLike[str]) -> None:
    """Raises an `OSError` unless `name` is a folder, or a name on the Hub with a config.json."""
    with reading_checkpoint(name):
        if not Path(name).is_dir():
            cached_file(name, "config.json")
