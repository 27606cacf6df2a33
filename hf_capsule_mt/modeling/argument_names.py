"""An error for a misspelt argument of a model. Without it, `forward` accepts any name."""

import difflib
from collections.abc import Iterable
from functools import cache
from inspect import Parameter, signature
from typing import Any

from transformers.utils import TransformersKwargs

# Arguments that every model of Transformers accepts, beside those in the signature of its `forward`.
TRANSFORMERS_ARGUMENTS = frozenset({*TransformersKwargs.__annotations__, "return_dict", "cache"})

# Arguments of other encoder-decoders. A caller that works with any model may pass them.
OTHER_MODELS_ARGUMENTS = frozenset(
    "encoder_hidden_states encoder_attention_mask position_ids decoder_position_ids token_type_ids head_mask "
    "decoder_head_mask cross_attn_head_mask cache_position".split()
)


@cache
def argument_names(model_class: Any) -> frozenset[str]:
    """The names of the arguments that `forward` of a model class accepts."""
    arguments = signature(model_class.forward).parameters.values()
    named = {argument.name for argument in arguments if argument.kind is not Parameter.VAR_KEYWORD}
    return TRANSFORMERS_ARGUMENTS | named


def check_argument_names(model_class: Any, names: Iterable[str]) -> None:
    """Raise a TypeError if one of `names` looks like a misspelt argument of `model_class.forward`.

    Transformers handles every other name.
    """
    accepted = argument_names(model_class)
    for name in names:
        if name in accepted or name in OTHER_MODELS_ARGUMENTS:
            continue
        close = difflib.get_close_matches(name, sorted(accepted), n=1, cutoff=0.8)
        if close:
            raise TypeError(f"{model_class.__name__} has no argument {name!r}: did you mean {close[0]!r}?")
