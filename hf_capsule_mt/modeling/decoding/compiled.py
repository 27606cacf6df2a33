"""Beam search with the compiled decoding steps that `generate()` has for greedy search and sampling.

Transformers compiles a step, into a CUDA graph by default, where the cache is static and the device an accelerator:
`generate(..., cache_implementation="static")`, settings in `compile_config`. Its beam search does not, and puts the
beams in order by making new tensors of keys and values, which no CUDA graph can read.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache
from transformers.utils import logging

from hf_capsule_mt.modeling.recurrent.cache import RecurrentCache

logger = logging.get_logger(__name__)

# Earlier releases compile the steps of every search anew, since they take each new cache for another case.
CAN_COMPILE_STEPS = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 11)


class StaticBeamCache(EncoderDecoderCache):
    """Two static caches of which beam search moves the rows in place, so that their addresses stay.

    Beams of one sentence read the same source: the keys and values of cross-attention stay where they are, and rows
    of one sentence must not be asked for in the place of another's.
    """

    def reorder_cache(self, beam_idx: Tensor) -> None:
        layer: Any
        for layer in self.self_attention_cache.layers:
            if layer.is_initialized:
                for kept in (layer.keys, layer.values):
                    kept.copy_(kept.index_select(0, beam_idx.to(kept.device)))


def compiles_beam_search(model: Any, settings: Any, model_kwargs: dict[str, Any]) -> bool:
    """Whether a beam search with these settings of `generate()` is to compile its steps; says what is in the way."""
    if not model._valid_auto_compile_criteria(model_kwargs, settings):
        return False
    obstacle = ""
    if not CAN_COMPILE_STEPS:
        obstacle = "that needs PyTorch 2.11"
    elif not isinstance(model_kwargs.get("past_key_values"), (StaticBeamCache, RecurrentCache)):
        obstacle = "this kind of cache moves when beams are put in order"
    elif settings.output_attentions or settings.output_hidden_states:
        # A CUDA graph writes every step's output to one place.
        obstacle = "output_attentions and output_hidden_states are kept from all steps"
    if obstacle:
        logger.warning_once(f"the steps of beam search are not compiled: {obstacle}")
    return not obstacle


def with_compiled_steps(model: Any, compiled_call: Any) -> Any:
    """`model` for one search: the same modules, but every call after the first is `compiled_call`.

    The first call fills the caches and is not compiled, as in Transformers' greedy search.
    """
    view = copy(model)
    view._prefill = model._prefill
    view._compiled_call_impl = compiled_call
    return view
