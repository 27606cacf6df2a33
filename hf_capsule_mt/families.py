"""The table of model families. Registration, recipes, warm starts and model cards read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import MarianConfig, MarianModel, MarianMTModel, PreTrainedConfig, PreTrainedModel

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

# The settings that aggregate layers and heads, also in a GDR model, and their papers.
AGGREGATIONS = {
    "layer_aggregation": (
        "Dou et al. 2019, *Dynamic Layer Aggregation for Neural Machine Translation with Routing-by-Agreement*"
    ),
    "head_aggregation": "Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*",
}
DLA = tuple(AGGREGATIONS.values())
GDR = ("Zheng et al. 2019, *Dynamic Past and Future for Neural Machine Translation*",)
CAPS_NMT = ("Wang et al. 2019, *Towards Linear Time Neural Machine Translation with Capsule Networks*",)


@dataclass(frozen=True)
class Family:
    """A model family.

    Args:
        config, model, translation_model: its configuration, its bare model and its translation model.
        papers: the papers that it implements.
        marian_start: the settings with which it gives the outputs of a Marian checkpoint; None if it cannot start
            from one.
        logs_plain_loss: whether even its oldest `results.json` has the loss without label smoothing. Old files do not
            say it themselves.
    """

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    translation_model: type[PreTrainedModel]
    papers: tuple[str, ...] = ()
    marian_start: dict[str, Any] | None = None
    logs_plain_loss: bool = False

    @property
    def name(self) -> str:
        return self.config.model_type

    def papers_with(self, config: Mapping[str, Any]) -> list[str]:
        """The papers of a model with these settings."""
        used = [paper for key, paper in AGGREGATIONS.items() if config.get(key, "none") != "none"]
        return list(dict.fromkeys([*self.papers, *used]))


FAMILIES = {
    family.name: family
    for family in (
        Family(
            CapsuleAggregatedMarianConfig,
            CapsuleAggregatedMarianModel,
            CapsuleAggregatedMarianForConditionalGeneration,
            DLA,
            {"aggregation_output": "gated"},
        ),
        Family(
            GDRMarianConfig,
            GDRMarianModel,
            GDRMarianForConditionalGeneration,
            GDR,
            {"aggregation_output": "gated"},
            logs_plain_loss=True,
        ),
        Family(GDRRNMTConfig, GDRRNMTModel, GDRRNMTForConditionalGeneration, GDR, logs_plain_loss=True),
        Family(CapsNMTConfig, CapsNMTModel, CapsNMTForConditionalGeneration, CAPS_NMT),
    )
}
# The baseline of the papers, from Transformers.
MARIAN = Family(MarianConfig, MarianModel, MarianMTModel)
FAMILIES_AND_MARIAN = {MARIAN.name: MARIAN, **FAMILIES}
PLAIN_LOSS_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.logs_plain_loss)
