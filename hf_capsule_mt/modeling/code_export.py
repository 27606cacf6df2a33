"""Saving a model together with its code, so that it loads where this package is not installed."""

from typing import Any


def _untyped(method: Any) -> Any:
    """For a method that no plain one can replace in the eyes of a type checker: Transformers wraps its own."""
    return method


class CodeExportMixin:
    """Goes before `PreTrainedModel` in the bases of a family's common class."""

    config: Any

    def save_pretrained(self, *args: Any, export_code: bool | None = None, **kwargs: Any) -> None:
        """As in Transformers.

        `export_code=True` adds flat copies of the files that this model needs, of the translation pipeline too, and
        the entries of config.json that name them: `trust_remote_code=True` then loads the folder where this package
        is not installed. The model remembers it, and so does the checkpoint: what is loaded from it is saved with
        its code again, until `export_code=False`.
        """
        if export_code is not None:
            self._carry_code(export_code)
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    @_untyped
    def push_to_hub(self, repo_id: str, *, export_code: bool = True, **kwargs: Any) -> str:
        """As in Transformers, with the model's code unless `export_code=False`; see `save_pretrained`."""
        self._carry_code(export_code)
        return super().push_to_hub(repo_id, **kwargs)  # type: ignore[misc]

    def _carry_code(self, carry: bool) -> None:
        self.config.carry_code(carry)
        own = f"{type(self).__module__.rpartition('.')[2]}.{type(self).__name__}"
        if carry and own not in self.config.auto_map.values():
            self.config.carry_code(False)
            raise ValueError(
                f"export_code=True: {own} is none of the classes whose files are copied. Save it with "
                "export_code=False; after register_for_auto_class() Transformers copies the file of your class"
            )
