"""An error for a misspelt argument of a model, which would otherwise be taken for one of Transformers' own."""

import difflib
from functools import cache
from inspect import Parameter, signature
from typing import Any

import torch
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


class CheckedArguments:
    """Mixin; list it before `PreTrainedModel`. `forward` takes any keyword, since Transformers hands on its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and not torch.compiler.is_compiling():
            kind: Any = type(self)
            known = argument_names(kind)
            for name in kwargs:
                if name not in known and name not in ELSEWHERE:
                    _refuse_slip(type(self).__name__, name, known)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


def _refuse_slip(model: str, name: str, known: frozenset[str]) -> None:
    """Raise if `name` is close to a known one; leave every other name to Transformers."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    if close:
        raise TypeError(f"{model} has no argument {name!r}: did you mean {close[0]!r}?")
