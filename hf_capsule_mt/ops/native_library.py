"""The compiled part of the package (`hf_capsule_mt/native`), where it was built and loads."""

import importlib
from typing import Any

INTERFACE = 1  # as in native/module.c; a copy of this file that comes with a model may meet another one


def _load() -> tuple[Any, str]:
    """The library, or None and the reason."""
    try:
        library: Any = importlib.import_module("hf_capsule_mt._native")
    except ModuleNotFoundError:
        return None, "the package was installed without its compiled part (no C compiler?)"
    except ImportError as error:
        return None, f"the compiled part of the package does not load: {error}"
    found = library.interface() if hasattr(library, "interface") else -1
    if found == 0:
        return None, "the compiled part of the package needs a processor with AVX2"
    if found != INTERFACE:
        return None, "the compiled part is that of another version of the package"
    return library, ""


LIBRARY, MISSING = _load()
