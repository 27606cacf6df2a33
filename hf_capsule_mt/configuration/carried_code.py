"""Code in a checkpoint folder: a configuration with an `auto_map` is saved with the files that the map names.

With them the checkpoint loads where this package is not installed (`trust_remote_code=True`). Where it is, its own
classes are used and the files are not read.
"""

from os import PathLike
from typing import Any, ClassVar

# The task that a checkpoint brings itself, as Transformers reads it from `custom_pipelines`.
TRANSLATION_TASK = {"impl": "pipelines.CapsuleTranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}


class CarriedCode:
    """Goes before a configuration class of Transformers in the bases of ours."""

    # Writes the code of a configuration into a folder. The package sets it when it is imported; in a copy of this
    # file that was loaded from a checkpoint it stays None, and Transformers copies the copies.
    code_writer: ClassVar[Any] = None

    # Whether every configuration of this class is saved with its code, see `register_for_auto_class`.
    is_registered_with_code: ClassVar[bool] = False
    _auto_class: ClassVar[Any]  # of Transformers

    auto_map: dict[str, str]

    @classmethod
    def own_auto_map(cls) -> dict[str, str]:
        """The classes of this configuration's family by their files; empty for a class of somebody else's."""
        folder, _, file = cls.__module__.rpartition(".")
        if folder != __name__.rpartition(".")[0]:
            return {}
        family, name = file.removeprefix("configuration_"), cls.__name__.removesuffix("Config")
        return {
            "AutoConfig": f"configuration_{family}.{name}Config",
            "AutoModel": f"modeling_{family}.{name}Model",
            "AutoModelForSeq2SeqLM": f"modeling_{family}.{name}ForConditionalGeneration",
        }

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """As in Transformers; a class of this package is saved with its code from then on.

        Transformers would copy one file, whose imports need this package.
        """
        super().register_for_auto_class(auto_class)  # type: ignore[misc]
        if cls.own_auto_map() and cls.code_writer is not None:
            cls._auto_class, cls.is_registered_with_code = None, True

    @property
    def carries_code(self) -> bool:
        # What a user's class put into the map with `register_for_auto_class` is for Transformers to save.
        return bool(self.own_auto_map()) and getattr(self, "auto_map", None) == self.own_auto_map()

    def carry_code(self, carry: bool = True) -> None:
        """Whether this configuration, and the model it belongs to, are saved with their code from now on."""
        if carry:
            self.auto_map = self.own_auto_map()
        elif self.carries_code:
            for name in ("auto_map", "custom_pipelines"):
                vars(self).pop(name, None)

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in Transformers, with the code if this configuration carries any."""
        if self.is_registered_with_code and self.own_auto_map():
            self.carry_code()
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if self.carries_code and self.code_writer is not None:
            type(self).code_writer(self, save_directory)

    def to_dict(self) -> dict[str, Any]:
        """As in Transformers; what `pipeline()` left in `custom_pipelines`, which is not JSON, is put right."""
        values = super().to_dict()  # type: ignore[misc]
        return {**values, "custom_pipelines": {"translation": TRANSLATION_TASK}} if self.carries_code else values
