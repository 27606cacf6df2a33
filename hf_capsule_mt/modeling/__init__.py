"""Model classes, one family a file, and the modules they share."""

from hf_capsule_mt.modeling.modeling_caps_nmt import (
    CapsNMTForConditionalGeneration,
    CapsNMTModel,
    CapsNMTPreTrainedModel,
)
from hf_capsule_mt.modeling.modeling_capsule_aggregated_marian import (
    CapsuleAggregatedMarianForConditionalGeneration,
    CapsuleAggregatedMarianModel,
    CapsuleAggregatedMarianPreTrainedModel,
)
from hf_capsule_mt.modeling.modeling_gdr_marian import (
    GDRMarianForConditionalGeneration,
    GDRMarianModel,
    GDRMarianPreTrainedModel,
)
from hf_capsule_mt.modeling.modeling_gdr_rnmt import (
    GDRRNMTForConditionalGeneration,
    GDRRNMTModel,
    GDRRNMTPreTrainedModel,
)

__all__ = [
    "CapsNMTForConditionalGeneration",
    "CapsNMTModel",
    "CapsNMTPreTrainedModel",
    "CapsuleAggregatedMarianForConditionalGeneration",
    "CapsuleAggregatedMarianModel",
    "CapsuleAggregatedMarianPreTrainedModel",
    "GDRMarianForConditionalGeneration",
    "GDRMarianModel",
    "GDRMarianPreTrainedModel",
    "GDRRNMTForConditionalGeneration",
    "GDRRNMTModel",
    "GDRRNMTPreTrainedModel",
]
