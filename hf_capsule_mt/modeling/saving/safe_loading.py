"""Loads weights from safetensors only. The installed package adds its checks of files here."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple


class FileChecks(NamedTuple):
    """Functions around Transformers' `from_pretrained`, `save_pretrained` and uploads; `file_checks.py` has them."""

    load: Callable[..., Any]
    save: Callable[..., None]
    sign: Callable[[Any], None]


class SafeLoadingMixin:
    """Mixin; list it before `PreTrainedModel`."""

    # The installed package sets this. Code in a checkpoint has no checks.
    file_checks: ClassVar[FileChecks | None] = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As in Transformers, but never unpickles a file: weights must be safetensors."""
        if kwargs.get("use_safetensors") is False:
            raise ValueError(
                f"use_safetensors=False: {cls.__name__} loads safetensors only, because a pickled file can run any "
                "code; convert the checkpoint once, where you trust it, with save_pretrained()"
            )
        kwargs["use_safetensors"] = True
        load = super().from_pretrained  # type: ignore[misc]
        if SafeLoadingMixin.file_checks is None:
            return load(pretrained_model_name_or_path, *model_args, **kwargs)
        return SafeLoadingMixin.file_checks.load(load, pretrained_model_name_or_path, *model_args, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers. The installed package adds the checks of `file_checks.py`."""
        save = super().save_pretrained  # type: ignore[misc]
        if SafeLoadingMixin.file_checks is None:
            save(*args, **kwargs)
        else:
            SafeLoadingMixin.file_checks.save(save, self, *args, **kwargs)

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        if SafeLoadingMixin.file_checks is not None:
            SafeLoadingMixin.file_checks.sign(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)  # type: ignore[misc]
