"""Checks of a checkpoint's files: every tensor is there, none is damaged, and an error says which file is broken.

The installed package runs them when a model is loaded or saved. Code in a checkpoint does without them.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import cached_file

from hf_capsule_mt.modeling.saving.finite_weights import check_finite
from hf_capsule_mt.modeling.saving.weight_digests import is_damaged, weight_files, write_digest

CONVERT = (
    "If the checkpoint has pytorch_model.bin only, convert it once, where you trust it: "
    "MarianMTModel.from_pretrained(path).save_pretrained(new_path), and copy its tokenizer files along."
)


def load_with_checks(
    load: Callable[..., Any], pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
) -> Any:
    """What `load`, Transformers' `from_pretrained`, returns; an OSError or a ValueError if a file does not fit."""
    wants_report = kwargs.pop("output_loading_info", False)
    takes_other_sizes = kwargs.pop("ignore_mismatched_sizes", False)
    reported = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    started = time.time()
    try:
        model, report = load(pretrained_model_name_or_path, *model_args, **kwargs, **reported)
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
    folder = None if "state_dict" in kwargs else checkpoint_folder(pretrained_model_name_or_path, **places)
    if folder is not None:
        check_digests(folder)
    if not takes_other_sizes:
        refuse_other_sizes(pretrained_model_name_or_path, report["mismatched_keys"])
    if folder is not None and not wants_report and report["missing_keys"] and is_as_saved(model, folder):
        refuse_missing(pretrained_model_name_or_path, sorted(report["missing_keys"]))
    return (model, report) if wants_report else model


def save_with_checks(save: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    """Call `save`, Transformers' `save_pretrained`, and add a digest to each file of weights, which shows damage."""
    arguments = {**dict(zip(("save_directory", "is_main_process", "state_dict"), args, strict=False)), **kwargs}
    is_main = arguments.get("is_main_process", True)
    if is_main:
        tensors = arguments.get("state_dict") or model.state_dict()
        check_finite(tensors.items(), type(model).__name__)
    save(*args, **kwargs)
    if is_main:
        for path in weight_files(Path(arguments["save_directory"])):
            write_digest(path)


def checkpoint_folder(name: str | os.PathLike[str] | None, subfolder: str = "", **places: Any) -> Path | None:
    """The folder that a checkpoint was loaded from: a local one, or one of the Hub's cache; None for no such one."""
    if name is None or os.path.isfile(name):
        return None
    if os.path.isdir(name):
        return Path(name, subfolder)
    quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    config = cached_file(name, "config.json", subfolder=subfolder, local_files_only=True, **quietly, **places)
    return None if config is None else Path(config).parent


def check_digests(folder: Path) -> None:
    """Raise an OSError if a file of weights is not what was written."""
    for path in weight_files(folder):
        if is_damaged(path):
            raise OSError(
                f"{path} is damaged: its SHA-256 is not the one it was saved with; copy or download it again"
            )


def is_as_saved(model: Any, folder: Path) -> bool:
    """Whether a model that was loaded from a folder is of the class and has the settings of the one saved there.

    Else new tensors are meant: a warm start from another family, a head on a bare model, a part that was switched on.
    """
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, common = model.config, {field.name for field in fields(PreTrainedConfig)}
    own = [field.name for field in fields(config) if field.name not in common and field.name in saved]
    return (
        saved.get("model_type") == config.model_type
        and type(model).__name__ in (saved.get("architectures") or ())
        and all(getattr(config, name) == saved[name] for name in own)
    )


def refuse_missing(name: Any, missing: list[str]) -> None:
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    raise OSError(
        f"the weights in {name} lack {', '.join(missing[:3])}{more}: a .safetensors file there is incomplete; copy or "
        "download it again. To start these at random: from_pretrained(..., output_loading_info=True)"
    )


def refuse_other_sizes(name: Any, mismatched: Any) -> None:
    for key, saved, built in sorted(mismatched):
        raise ValueError(
            f"the weights in {name} do not fit: {key} has the size {list(saved)} there and {list(built)} in this "
            "model. Weights and config.json are of different models, or a setting was changed; use those of one "
            "model, or start such tensors at random with ignore_mismatched_sizes=True"
        )


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
