"""Loading weights: safetensors only, and an error that says which file is broken."""

from typing import Any


class SafeLoadingMixin:
    """Goes before `PreTrainedModel` in the bases of a family's common class."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As in Transformers, but nothing is ever unpickled: weights must be safetensors."""
        if kwargs.get("use_safetensors") is False:
            raise ValueError(
                f"{cls.__name__} loads safetensors only: a pickled file can run any code. Convert it once, in an "
                "environment you trust, with MarianMTModel.from_pretrained(path).save_pretrained(new_path)"
            )
        kwargs["use_safetensors"] = True
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)  # type: ignore[misc]
        except Exception as error:
            # Raised by the reader of the file, which knows neither its name nor that it is ours.
            if type(error).__name__ != "SafetensorError":
                raise
            raise OSError(
                f"the weights in {pretrained_model_name_or_path} cannot be read ({error}): a .safetensors file there "
                "is cut off or damaged; copy or download it again"
            ) from error
