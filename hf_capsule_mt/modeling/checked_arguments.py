"""The installed package checks the argument names of each call here; `argument_names.py` has the check."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch


class CheckedArguments:
    """Mixin; list it before `PreTrainedModel`. The check is needed because `forward` accepts any keyword."""

    # The installed package sets this. Code in a checkpoint makes no check.
    check_argument_names: ClassVar[Callable[[type, Any], None] | None] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and CheckedArguments.check_argument_names is not None and not torch.compiler.is_compiling():
            CheckedArguments.check_argument_names(type(self), kwargs)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]
