"""`quantize_for_cpu`: a trained model as one in int8 that translates on a CPU."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import MarianMTModel, PreTrainedModel
from transformers.models.marian.modeling_marian import MarianDecoderLayer

from hf_capsule_mt.inference.int8.layers import (
    NOT_SAVED,
    Int8BidirectionalLSTM,
    Int8Linear,
    Int8LSTM,
    check_it_stays,
    int8_rounding,
)
from hf_capsule_mt.inference.int8.marian import (
    Copies,
    Int8GatedProjection,
    decoder_layer,
    routed_combination,
    stacked_linear,
)
from hf_capsule_mt.inference.int8.steps import LeanMarian
from hf_capsule_mt.modeling.capsules.head_aggregation import GatedRoutedProjection
from hf_capsule_mt.modeling.capsules.layer_aggregation import RoutedCombination
from hf_capsule_mt.modeling.capsules.linear_maps import StackedLinear
from hf_capsule_mt.modeling.modeling_caps_nmt import CapsNMTForConditionalGeneration
from hf_capsule_mt.modeling.modeling_capsule_aggregated_marian import CapsuleAggregatedMarianForConditionalGeneration
from hf_capsule_mt.modeling.modeling_gdr_marian import GDRMarianForConditionalGeneration
from hf_capsule_mt.modeling.modeling_gdr_rnmt import GDRRNMTForConditionalGeneration
from hf_capsule_mt.modeling.recurrent.bidirectional_rnn import LSTM, BidirectionalLayer


class Int8Model(nn.Module):
    """Goes before a family's translation model: what an int8 model refuses, and why."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(NOT_SAVED)

    push_to_hub: Any = save_pretrained

    def train(self, mode: bool = True) -> Any:
        if mode:
            raise RuntimeError("an int8 model cannot be trained: train the float model, then call quantize_for_cpu")
        return super().train(mode)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        if requires_grad:
            raise RuntimeError("an int8 model has no gradients: train the float model, then call quantize_for_cpu")
        return super().requires_grad_(requires_grad)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        check_it_stays(fn)  # before any part is changed
        return super()._apply(fn, recurse)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("int8 weights have a fixed size: resize the float model, then call quantize_for_cpu")


class Int8CapsNMTForConditionalGeneration(Int8Model, CapsNMTForConditionalGeneration):
    """CapsNMT as [`quantize_for_cpu`] returns it."""


class Int8GDRRNMTForConditionalGeneration(Int8Model, GDRRNMTForConditionalGeneration):
    """The RNMT with past and future as [`quantize_for_cpu`] returns it; its encoder's GRUs stay in float32."""


class Int8CapsuleAggregatedMarianForConditionalGeneration(
    Int8Model, LeanMarian, CapsuleAggregatedMarianForConditionalGeneration
):
    """Marian with layer and head aggregation as [`quantize_for_cpu`] returns it."""


class Int8GDRMarianForConditionalGeneration(Int8Model, LeanMarian, GDRMarianForConditionalGeneration):
    """Marian with past and future as [`quantize_for_cpu`] returns it."""


class Int8MarianMTModel(Int8Model, LeanMarian, MarianMTModel):
    """Stock Marian as [`quantize_for_cpu`] returns it."""


# What makes a module of the part, and of the copies that parts inside it have by then.
Replacement = tuple[type[nn.Module], Callable[[Any, Copies], nn.Module]]


class Int8Family(NamedTuple):
    """What becomes of a translation model and of its parts; of two entries for a part the first counts."""

    model: type[Int8Model]
    parts: tuple[Replacement, ...]


LINEAR: Replacement = (nn.Linear, lambda part, _: Int8Linear.of(part))
LSTMS: tuple[Replacement, ...] = (
    (BidirectionalLayer, lambda part, _: Int8BidirectionalLSTM(part)),
    (LSTM, lambda part, _: Int8LSTM.of(part)),
)
MARIAN: tuple[Replacement, ...] = (
    (GatedRoutedProjection, Int8GatedProjection),
    (StackedLinear, stacked_linear),
    (RoutedCombination, routed_combination),
    (MarianDecoderLayer, decoder_layer),
    LINEAR,
)
FAMILIES: dict[type[PreTrainedModel], Int8Family] = {
    CapsNMTForConditionalGeneration: Int8Family(Int8CapsNMTForConditionalGeneration, (*LSTMS, LINEAR)),
    CapsuleAggregatedMarianForConditionalGeneration: Int8Family(
        Int8CapsuleAggregatedMarianForConditionalGeneration, MARIAN
    ),
    GDRMarianForConditionalGeneration: Int8Family(Int8GDRMarianForConditionalGeneration, MARIAN),
    GDRRNMTForConditionalGeneration: Int8Family(Int8GDRRNMTForConditionalGeneration, (LINEAR,)),
    MarianMTModel: Int8Family(Int8MarianMTModel, MARIAN),
}


def quantize_for_cpu(model: Any) -> Any:
    """A copy of `model` that translates on a CPU several times faster, with int8 in place of its weight matrices.

    It has the interface of the model: `generate()`, `forward`, the pipeline. It cannot be trained, saved or moved to
    another device; `model` itself is left as it is, and is what to save. Embeddings, layer norms and routing stay in
    float32. Inputs are rounded row by row. In CapsNMT the other sentences of a batch change nothing; in attention,
    padding changes sums in their last digits, and now and then that tips a byte.

    Args:
        model: a translation model on the CPU, of one of this package's families or a `MarianMTModel`.

    Example:

    ```python
    >>> from hf_capsule_mt import CapsNMTForConditionalGeneration, quantize_for_cpu

    >>> model = quantize_for_cpu(CapsNMTForConditionalGeneration.from_pretrained("path/to/checkpoint"))
    >>> tokens = model.generate(**tokenizer("The old fox sees the river .", return_tensors="pt"))
    ```"""
    if isinstance(model, Int8Model):
        raise ValueError("the model is in int8 already")
    family = FAMILIES.get(type(model))
    if family is None:
        known = ", ".join(found.__name__ for found in FAMILIES)
        raise ValueError(
            f"quantize_for_cpu does not know {type(model).__name__}: it takes {known}; "
            "an adapter is merged first (merge_and_unload)"
        )
    places = {parameter.device.type for parameter in model.parameters()}
    if places != {"cpu"}:
        raise ValueError(f'the model is on {", ".join(sorted(places))}: move it first, model.to("cpu")')
    int8_rounding()
    # Copying takes what is here in place of a part, ties between what is left included.
    copies: Copies = {}
    precise = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    source = model if precise else copy.deepcopy(model).float()
    for part in reversed(list(source.modules())):  # a module comes before those inside it
        make = next((make for kind, make in family.parts if isinstance(part, kind)), None)
        if make is not None:
            copies[id(part)] = make(part, copies)
    quantized = copy.deepcopy(source, copies)
    quantized.__class__ = family.model
    return quantized.eval().requires_grad_(False)
