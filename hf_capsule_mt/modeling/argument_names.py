"""An error for a misspelt argument of a model, which would otherwise be taken for one of Transformers' own."""

import difflib
from collections.abc import Iterable
from functools import cache
from inspect import Parameter, signature
from typing import Any

from transformers.utils import TransformersKwargs

# What may be given to any model of Transformers beside the names in the signature of its `forward`.
COMMON = frozenset({*TransformersKwargs.__annotations__, "return_dict"})

# Arguments of other encoder-decoders, which callers that serve all of them may hand over.
ELSEWHERE = frozenset(
    "encoder_hidden_states encoder_attention_mask position_ids decoder_position_ids token_type_ids head_mask "
    "decoder_head_mask cross_attn_head_mask cache_position".split()
)


@cache
def argument_names(kind: Any) -> frozenset[str]:
    """The names that `forward` of a class of models knows."""
    parameters = signature(kind.forward).parameters.values()
    return COMMON | {parameter.name for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD}


def check_names(kind: Any, names: Iterable[str]) -> None:
    """Raise a TypeError if one of `names` is none of `kind.forward` and close to one of them.

    Every other name is left to Transformers.
    """
    known = argument_names(kind)
    for name in names:
        if name in known or name in ELSEWHERE:
            continue
        close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        if close:
            raise TypeError(f"{kind.__name__} has no argument {name!r}: did you mean {close[0]!r}?")
