"""Checks of the input of commands that need neither the package nor PyTorch, so that mistakes are shown at once."""

import os
from collections.abc import Iterable
from pathlib import Path

from hf_capsule_mt.checkpoint_names import CONFIG_FILES, check_name, missing_folder

Place = str | os.PathLike[str]


def check_files(files: Iterable[Place | None], called: str = "file") -> None:
    """Raises an `OSError` for the first file that does not exist. None stands for a file that was not named."""
    for file in files:
        if file is not None and not os.path.exists(file):
            raise OSError(f"no such {called}: {str(file)!r}")


def check_models(names: Iterable[str], revision: str | None = None) -> None:
    """Raises an `OSError` for the first name that is neither a checkpoint folder nor a model on the Hub.

    Of a model on the Hub, its configuration is downloaded. All else that may be wrong shows when it is loaded.
    """
    for name in names:
        check_name(name)
        if not Path(name).exists():
            _check_hub_model(name, revision)


def _check_hub_model(name: str, revision: str | None) -> None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in CONFIG_FILES):
        return
    try:
        hf_hub_download(name, CONFIG_FILES[0], revision=revision)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        is_remote = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        if is_remote:  # a model without config.json, such as an adapter
            return
        reason = " ".join(str(error).split())
        if isinstance(error, LocalEntryNotFoundError):
            reason = "the Hub cannot be reached, and the cache has no such model"
        raise OSError(f"{missing_folder(name)}, and loading it from the Hub failed: {reason}") from error
