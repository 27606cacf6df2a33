"""Loads weights from safetensors only. The installed package adds its checks of files here."""

from typing import Any, ClassVar


class SafeLoadingMixin:
    """Mixin; list it before `PreTrainedModel`."""

    file_checks: ClassVar[Any] = None  # the installed package sets this to its module `file_checks.py`

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
        checks, arguments = SafeLoadingMixin.file_checks, (pretrained_model_name_or_path, *model_args)
        return load(*arguments, **kwargs) if checks is None else checks.load_with_checks(load, *arguments, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers. The installed package adds the checks of `file_checks.py`."""
        save = super().save_pretrained  # type: ignore[misc]
        if SafeLoadingMixin.file_checks is None:
            save(*args, **kwargs)
        else:
            SafeLoadingMixin.file_checks.save_with_checks(save, self, *args, **kwargs)

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        if SafeLoadingMixin.file_checks is not None:
            SafeLoadingMixin.file_checks.sign(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)  # type: ignore[misc]
