"""Outputs of Transformers' encoder-decoders with the assignment probabilities beside them."""

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import ModelOutput

from hf_capsule_mt.modeling.routing_record import RoutingRecord

Output = TypeVar("Output", bound=ModelOutput)


@dataclass
class CapsuleEncoderOutput(BaseModelOutput):
    """[`BaseModelOutput`] and `routings`, see [`CapsuleSeq2SeqLMOutput`]."""

    routings: dict[str, Tensor] | None = None


@dataclass
class CapsuleDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """[`BaseModelOutputWithPastAndCrossAttentions`] and `routings`, see [`CapsuleSeq2SeqLMOutput`]."""

    routings: dict[str, Tensor] | None = None


@dataclass
class CapsuleSeq2SeqModelOutput(Seq2SeqModelOutput):
    """[`Seq2SeqModelOutput`] and `routings`, see [`CapsuleSeq2SeqLMOutput`]."""

    routings: dict[str, Tensor] | None = None


@dataclass
class CapsuleSeq2SeqLMOutput(Seq2SeqLMOutput):
    """
    [`Seq2SeqLMOutput`] and, with `output_routings=True`, what every routing site of the call did.

    Args:
        routings (`dict[str, torch.FloatTensor]`, *optional*):
            Assignment probabilities by routing site, each of shape `(iterations, batch_size, sequence_length,
            num_inputs, num_capsules)` and as they were before that iteration's update of the capsules, so that the
            first iteration is uniform. They sum to 1 over the capsules. The sites are

            - `"encoder.layer_aggregation"`, `"decoder.layer_aggregation"`: inputs are the layers;
            - `"encoder.layers.{i}.self_attn"`, `"decoder.layers.{i}.self_attn"`, `"decoder.layers.{i}.encoder_attn"`:
              inputs are the heads.

            `sequence_length` is that of the source for the encoder's sites and of the decoder input for the others.
            Padded positions are routed like any other; mask them out. With gradient checkpointing the probabilities
            carry no gradient.
    """

    routings: dict[str, Tensor] | None = None


def with_routings(kind: type[Output], outputs: ModelOutput, record: RoutingRecord | None, **changes: Any) -> Output:
    """`outputs` as a `kind`, with the record's assignments and any `changes` of other fields."""
    routings = None if record is None else dict(record.assignments)
    return kind(**{**outputs, **changes, "routings": routings})
