"""Saving a model together with its code, so that it loads where this package is not installed."""

from typing import Any


def _untyped(method: Any) -> Any:
    """For a method that no plain one can replace in the eyes of a type checker: Transformers wraps its own."""
    return method


class CodeExportMixin:
    """Goes before `PreTrainedModel` in the bases of a family's common class."""

    config: Any

    @property
    def can_carry_code(self) -> bool:
        """Whether this is one of the classes that `auto_map` names, not one of a user's or a part of a model."""
        own = f"{type(self).__module__.rpartition('.')[2]}.{type(self).__name__}"
        return own in self.config.own_auto_map().values()

    def save_pretrained(self, *args: Any, export_code: bool | None = None, **kwargs: Any) -> None:
        """As in Transformers.

        `export_code=True` adds flat copies of the files that this model needs, of the translation pipeline too, and
        the entries of config.json that name them: `trust_remote_code=True` then loads the folder where this package
        is not installed. The model remembers it, and so does the checkpoint: what is loaded from it is saved with
        its code again, until `export_code=False`.
        """
        if export_code and not self.can_carry_code:
            raise ValueError(
                f"export_code=True: {type(self).__name__} is none of the classes whose files are copied. Save it with "
                "export_code=False; after register_for_auto_class() Transformers copies the file of your class"
            )
        if export_code is not None:
            self.config.carry_code(export_code)
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    @_untyped
    def push_to_hub(self, repo_id: str, *, export_code: bool = True, **kwargs: Any) -> str:
        """As in Transformers; a class of this package with its code, see `save_pretrained`, if not told otherwise."""
        self.config.carry_code(export_code and self.can_carry_code)
        return super().push_to_hub(repo_id, **kwargs)  # type: ignore[misc]
