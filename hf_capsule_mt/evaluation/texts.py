"""Arguments that are lists of texts: one string is a list of its letters to Python, and never what was meant."""

from collections.abc import Iterable, Mapping
from typing import Any


def check_texts(**arguments: Any) -> None:
    """A ValueError for one string in the place of a list, and for an entry that is no string."""
    for name, texts in arguments.items():
        if isinstance(texts, str | bytes):
            kind = "string" if isinstance(texts, str) else "bytes object"
            raise ValueError(f"{name} is one {kind} and must be a list of strings; pass [text]")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"{name}[{index}] is of type {type(text).__name__} and must be a string")
            check_text(**{f"{name}[{index}]": text})


def check_text(**arguments: Any) -> None:
    """A TypeError for an argument that is no string; a ValueError for one that cannot be written as UTF-8."""
    for name, text in arguments.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} is of type {type(text).__name__} and must be a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} holds {text[error.start]!r} at character {error.start + 1}, half of a pair of surrogates; "
                "read or decode the text as UTF-8"
            ) from None


def listed(**argument: Any) -> Any:
    """The list of what an argument gives one by one, bytes as they are; a TypeError for a mapping or a number."""
    ((name, texts),) = argument.items()
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} is of type {type(texts).__name__} and must be a string or a list of strings")
    return texts if isinstance(texts, str | bytes) else list(texts)
