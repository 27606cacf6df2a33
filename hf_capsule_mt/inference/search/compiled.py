"""Beam search in compiled decoding steps, which Transformers has only for greedy search and sampling.

With `generate(..., cache_implementation="static")` on an accelerator, Transformers compiles a step, by default into a
CUDA graph; `compile_config` has the settings. Its beam search does not compile: it reorders beams by creating new
tensors of keys and values, which a CUDA graph cannot read.
"""

from copy import copy
from typing import Any

from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache
from transformers.utils import logging

from hf_capsule_mt.modeling.outputs import CACHE
from hf_capsule_mt.modeling.recurrent.cache import CAN_COMPILE_STEPS, RecurrentCache

logger = logging.get_logger(__name__)


class StaticBeamCache(EncoderDecoderCache):
    """Two static caches. Beam search reorders their rows in place, so the addresses of the tensors stay the same.

    Keys and values of cross-attention are not reordered: beam search moves rows only within a sentence, whose beams
    read the same source.
    """

    def reorder_cache(self, beam_idx: Tensor) -> None:
        layer: Any
        for layer in self.self_attention_cache.layers:
            if layer.is_initialized:
                for kept in (layer.keys, layer.values):
                    kept.copy_(kept.index_select(0, beam_idx.to(kept.device)))


def can_compile_beam_search(model: Any, settings: Any, model_kwargs: dict[str, Any], callers_cache: Any) -> bool:
    """Whether to compile the steps of this beam search. Warns if the settings ask for it but it is impossible."""
    if not model._valid_auto_compile_criteria(model_kwargs, settings):
        return False
    cache_name = settings.cache_implementation or ""
    static = callers_cache is None and "offloaded" not in cache_name
    obstacle = ""
    if not CAN_COMPILE_STEPS:
        obstacle = "compilation needs PyTorch 2.11"
    elif not static and not isinstance(model_kwargs.get(CACHE), RecurrentCache):
        obstacle = "this kind of cache moves when beams are reordered"
    elif settings.output_attentions or settings.output_hidden_states:
        # A CUDA graph overwrites the output of the step before.
        obstacle = "output_attentions and output_hidden_states need the outputs of all steps"
    if obstacle:
        logger.warning_once(f"the steps of beam search are not compiled: {obstacle}")
    return not obstacle


def beam_search_in_compiled_steps(
    model: Any, input_ids: Tensor, processors: Any, criteria: Any, settings: Any, **kwargs: Any
) -> Any:
    """Transformers' beam search on a copy of `model`, which shares its modules and compiles every call but the first.

    The first call fills the caches. Transformers' greedy search does not compile its first call either.
    """
    cache = kwargs[CACHE]
    if isinstance(cache, EncoderDecoderCache):
        kwargs[CACHE] = StaticBeamCache(cache.self_attention_cache, cache.cross_attention_cache)
    view = copy(model)
    view._prefill = model._prefill
    view._compiled_call_impl = model.get_compiled_call(settings.compile_config)
    return view._beam_search(input_ids, processors, criteria, settings, **kwargs)
