"""Makes the package's families known to the Auto classes of Transformers."""

from dataclasses import dataclass

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from hf_capsule_mt.configuration.configuration_caps_nmt import CapsNMTConfig
from hf_capsule_mt.configuration.configuration_capsule_aggregated_marian import CapsuleAggregatedMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_marian import GDRMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_rnmt import GDRRNMTConfig
from hf_capsule_mt.modeling.modeling_caps_nmt import CapsNMTForConditionalGeneration, CapsNMTModel
from hf_capsule_mt.modeling.modeling_capsule_aggregated_marian import (
    CapsuleAggregatedMarianForConditionalGeneration,
    CapsuleAggregatedMarianModel,
)
from hf_capsule_mt.modeling.modeling_gdr_marian import GDRMarianForConditionalGeneration, GDRMarianModel
from hf_capsule_mt.modeling.modeling_gdr_rnmt import GDRRNMTForConditionalGeneration, GDRRNMTModel


@dataclass(frozen=True)
class Family:
    """One model family: its configuration, its bare model and its translation model."""

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    translation_model: type[PreTrainedModel]


FAMILIES = (
    Family(
        CapsuleAggregatedMarianConfig, CapsuleAggregatedMarianModel, CapsuleAggregatedMarianForConditionalGeneration
    ),
    Family(GDRMarianConfig, GDRMarianModel, GDRMarianForConditionalGeneration),
    Family(GDRRNMTConfig, GDRRNMTModel, GDRRNMTForConditionalGeneration),
    Family(CapsNMTConfig, CapsNMTModel, CapsNMTForConditionalGeneration),
)


def register() -> None:
    """Register every family; called once, when the package is imported.

    Without `exist_ok`: a name that is taken must be an error, never a replacement for the whole process.
    """
    for family in FAMILIES:
        AutoConfig.register(family.config.model_type, family.config)
        AutoModel.register(family.config, family.model)
        AutoModelForSeq2SeqLM.register(family.config, family.translation_model)
