"""Where the installed package checks the names of a call's arguments, see `argument_names.py`."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch


class CheckedArguments:
    """Mixin; list it before `PreTrainedModel`. `forward` takes any keyword, because Transformers passes on its own."""

    # The installed package sets it; code in a checkpoint has none.
    check_names: ClassVar[Callable[[type, Any], None] | None] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and CheckedArguments.check_names is not None and not torch.compiler.is_compiling():
            CheckedArguments.check_names(type(self), kwargs)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]
