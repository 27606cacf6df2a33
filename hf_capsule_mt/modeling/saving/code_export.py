"""Saving a model together with its code, so that it loads where this package is not installed."""

from typing import Any


def _untyped(method: Any) -> Any:
    """For a method that no plain one can replace in the eyes of a type checker: Transformers wraps its own."""
    return method


class CodeExportMixin:
    """Goes before `PreTrainedModel` in the bases of a family's common class."""

    config: Any
    config_class: Any
    # Whether every model of this class is saved with its code, see `register_for_auto_class`.
    is_registered_with_code: bool = False
    _auto_class: Any  # of Transformers

    @classmethod
    @_untyped
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """As in Transformers; a class of this package is saved as by `export_code=True` from then on.

        Transformers would copy one file, whose imports need this package.
        """
        super().register_for_auto_class(auto_class)  # type: ignore[misc]
        if cls._is_own() and cls.config_class.code_writer is not None:
            cls._auto_class, cls.is_registered_with_code = None, True

    @classmethod
    def _is_own(cls) -> bool:
        """Whether this is one of the classes that `auto_map` names, not one of a user's or a part of a model."""
        own = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        return own in cls.config_class.own_auto_map().values()

    @property
    def can_carry_code(self) -> bool:
        """Whether `export_code=True` is possible: not for a class of a user's, nor for a part of a model."""
        return self._is_own()

    def save_pretrained(self, *args: Any, export_code: bool | None = None, **kwargs: Any) -> None:
        """As in Transformers.

        `export_code=True` adds flat copies of the files that this model needs, of the translation pipeline too, and
        the entries of config.json that name them: `trust_remote_code=True` then loads the folder where this package
        is not installed. The model remembers it, and so does the checkpoint: what is loaded from it is saved with
        its code again, until `export_code=False`.
        """
        if export_code is None and self.is_registered_with_code and self.can_carry_code:
            export_code = True
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
