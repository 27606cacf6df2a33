"""Loading weights: safetensors only, and an error that says which file is broken."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

CONVERT = (
    "If the checkpoint has pytorch_model.bin only, convert it once, where you trust it: "
    "MarianMTModel.from_pretrained(path).save_pretrained(new_path), and copy its tokenizer files along."
)


class SafeLoadingMixin:
    """Goes before `PreTrainedModel` in the bases of a family's common class."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As in Transformers, but nothing is ever unpickled: weights must be safetensors."""
        if kwargs.get("use_safetensors") is False:
            raise ValueError(f"{cls.__name__} loads safetensors only: a pickled file can run any code. {CONVERT}")
        kwargs["use_safetensors"] = True
        started = time.time()
        try:
            loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)  # type: ignore[misc]
        except OSError as error:
            # The usual folder of an older Marian checkpoint: it has weights, but pickled ones.
            if "safetensors" not in str(error) or "No space" in str(error):
                raise
            raise OSError(f"{error} {CONVERT}") from error
        except Exception as error:
            # Raised by the reader of the file, which knows neither its name nor that it is ours.
            if type(error).__name__ != "SafetensorError":
                raise
            raise OSError(
                f"the weights in {pretrained_model_name_or_path} cannot be read ({error}): a .safetensors file there "
                "is cut off or damaged; copy or download it again"
            ) from error
        places = {name: kwargs[name] for name in ("cache_dir", "revision", "subfolder") if kwargs.get(name)}
        check_downloads(pretrained_model_name_or_path, started, **places)
        return loaded


def check_downloads(name: str | os.PathLike[str] | None, since: float, **places: Any) -> None:
    """Raise an OSError, and delete the file, if a large file that came from the Hub since then is damaged: any of the
    repository, whatever loads it, in whatever process.

    The Hub's client compares lengths alone, and what has the right one stays in its cache. A large file, as weights
    are, lies there under its SHA-256. `since` is in seconds since 1970, `places` as for `from_pretrained`.
    """
    if name is None or os.path.isdir(name):
        return
    quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    config = cached_file(name, "config.json", local_files_only=True, **quietly, **places)
    parents = Path(config).parents if config else ()
    blobs = next((parent.with_name("blobs") for parent in parents if parent.name == "snapshots"), None)
    for path in blobs.glob("[0-9a-f]" * 64) if blobs else ():
        if path.stat().st_mtime < since - 5:  # clocks of file systems differ
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        if digest.hexdigest() != path.name:
            path.unlink(missing_ok=True)  # another process may have seen it too
            raise OSError(
                f"a file of {name} was damaged on its way from the Hub (its SHA-256 is not {path.name}), and has been "
                "deleted: load it again"
            )
