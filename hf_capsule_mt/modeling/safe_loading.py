"""Loading weights: safetensors only, and an error that says which file is broken."""

from typing import Any

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
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)  # type: ignore[misc]
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
