"""The model families and the tiny configurations that the shared tests build.

A new family adds one `Family` to `FAMILIES`. Sizes are all different (two encoder layers, three decoder layers, four
and two heads, ...), and weights are far from their initial values, so that mixed-up axes show, and parts that do
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from sentence_pairs import END, PAD
from sentence_pairs import Pairs as Pairs
from sentence_pairs import assert_close as assert_close
from sentence_pairs import assert_same_gradients as assert_same_gradients
from sentence_pairs import make_pairs as make_pairs
from sentence_pairs import without_labels as without_labels
from sentence_pairs import without_target as without_target
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from hf_capsule_mt.configuration import configuration_caps_nmt as caps_options
from hf_capsule_mt.configuration import configuration_capsule_aggregated_marian as marian_options
from hf_capsule_mt.configuration import past_future_options
from hf_capsule_mt.configuration.configuration_caps_nmt import CapsNMTConfig
from hf_capsule_mt.configuration.configuration_capsule_aggregated_marian import CapsuleAggregatedMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_marian import GDRMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_rnmt import RNMT_PAST_FUTURES, GDRRNMTConfig
from hf_capsule_mt.modeling import (
    CapsNMTForConditionalGeneration,
    CapsNMTModel,
    CapsuleAggregatedMarianForConditionalGeneration,
    CapsuleAggregatedMarianModel,
    GDRMarianForConditionalGeneration,
    GDRMarianModel,
    GDRRNMTForConditionalGeneration,
    GDRRNMTModel,
)
from hf_capsule_mt.modeling.capsule_router import ScaledSplitLinear, StackedLinear
from hf_capsule_mt.modeling.head_aggregation import HeadCapsules, HeadVotes
from hf_capsule_mt.modeling.recurrent_cache import RecurrentCache

ALL_ATTENTIONS = ["encoder_self", "decoder_cross", "decoder_self"]


class Site(NamedTuple):
    """What a routing site must report."""

    iterations: int
    side: str  # whose length the site has; "sentence": one routing for all of it
    inputs: int | None  # None: the words of the source, of which padding is assigned nowhere
    capsules: int
    # What the probabilities sum to 1 over: the capsules, or, for each capsule, the inputs.
    over: str = "capsules"
    starts_uniform: bool = True


Sites = dict[str, Site]


def attention_cache(config: Any) -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))


@dataclass(frozen=True)
class Family:
    """One model family: its classes, its configurations, and what the shared tests must know about it."""

    name: str
    config: type
    model: type
    translation: type
    sizes: dict[str, Any]
    configs: dict[str, dict[str, Any]]
    # Fields with a fixed set of values, every one of which some configuration must build.
    choices: dict[str, tuple[Any, ...]]
    routing_sites: Callable[[Any], Sites]
    # Where the modules look the routing functions up, "module:name".
    routing_functions: tuple[str, ...]
    # Configurations for the slow tests; the first has the most parts.
    chosen: tuple[str, ...]
    # Changes that make a configuration as shallow as it can be, for the compiler.
    shallow: dict[str, Any]
    # Parameters that no loss depends on: adding a constant to all keys leaves the softmax of the scores alone.
    # Marian's table of positions is not trained.
    without_gradient: tuple[str, ...] = ("k_proj.bias", "embed_positions.weight")
    # Parameters that start at 0, so that what is behind them may have no gradient before the first step.
    gates: tuple[str, ...] = ("gate", "combination.weights.weight")
    # Modules that must not be split and that only some configurations have; the first of `chosen` has them all.
    optional_blocks: tuple[str, ...] = ()
    # Fields that are the same in every configuration, because they have one value only or tests of their own.
    fixed_fields: tuple[str, ...] = ()
    # An empty cache, as a caller would make it.
    make_cache: Callable[[Any], Any] = attention_cache
    # The implementations of attention that can be chosen, the first by default.
    attentions: tuple[str, ...] = ("sdpa", "eager", "flex_attention")
    # Width of the encoder's layers; embeddings and the decoder's states are `d_model` wide.
    encoder_width: Callable[[Any], int] = lambda config: config.d_model
    # Fields of the encoder's output that the decoder is called with beside the states.
    decoder_needs: tuple[str, ...] = ()
    # Linear maps that adapters are put on.
    adapted: tuple[str, ...] = ("q_proj", "v_proj")
    # Settings without which torch.compile refuses the model.
    compiler_settings: dict[str, Any] = field(default_factory=dict)
    # By how much the outputs of a loaded model may differ: products of few rows, which recurrent steps are made of,
    # are rounded differently where the weights lie at another address.
    rounding: float = 0.0

    def has(self, name: str) -> bool:
        """Whether the configuration has a field of this name."""
        return name in self.config.__dataclass_fields__


@dataclass(frozen=True)
class Case:
    """One configuration of one family."""

    family: Family
    name: str

    def __str__(self) -> str:
        return f"{self.family.name}-{self.name}"

    def config(self, **changes: Any) -> Any:
        return self.family.config(**{**self.family.sizes, **self.family.configs[self.name], **changes})

    def build(self, base: bool = False, **changes: Any) -> Any:
        """A model in evaluation mode with weights that make every part count."""
        torch.manual_seed(13)
        model = (self.family.model if base else self.family.translation)(self.config(**changes))
        # EM routing needs far larger votes before it prefers one capsule.
        spread_weights(model, 4.0 if "em_routing" in vars(model.config).values() else 1.9)
        if not base:
            # As in the published Marian checkpoints: the padding token is never generated.
            model.generation_config.bad_words_ids = [[PAD]]
            # Random weights repeat one word for ever; this way sentences differ, and end at different lengths.
            model.generation_config.no_repeat_ngram_size = 1
            model.generation_config.max_length = 14
        return model.eval()


SCALED = (ScaledSplitLinear, StackedLinear, HeadCapsules, HeadVotes)


@torch.no_grad()
def spread_weights(model: nn.Module, vote_scale: float) -> None:
    """Random values for whatever starts at zero or one, and larger ones for what routing reads."""
    generator = torch.Generator().manual_seed(7)
    for module in model.modules():
        if isinstance(module, SCALED) and module.start_std is not None:
            # Weights of one size everywhere: as large as its residual stream, each router drowns those below it.
            # None mirrored: linear maps tell sources apart less.
            drawn = torch.randn(module.weight.shape, generator=generator, dtype=module.weight.dtype)
            module.weight.copy_(model.config.init_std * drawn)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if name.endswith("gate"):
            parameter.copy_(0.5 * noise)
        elif name.endswith("past_future.fc2.weight"):
            parameter.copy_(0.06 * noise)
        elif name.endswith("combination.weights.weight"):
            parameter.copy_(0.1 * noise)
        elif name.endswith("score_weight"):
            parameter.copy_(1.5 * noise)
        elif "beta_" in name:
            parameter.copy_(3.0 * noise)
        elif name.endswith("scoring_weight"):
            parameter.mul_(1.5)
        elif ".votes." in name:
            parameter.mul_(vote_scale)
        elif name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            parameter.mul_(2.0)
        elif ".encoder_attn." in name and name.endswith(("v_proj.weight", "out_proj.weight")):
            parameter.mul_(2.0)  # so that sources differ in their translations
        elif "norm.weight" in name:
            parameter.copy_(1.0 + 0.2 * noise)
        elif parameter.dim() == 1 or name.endswith("bias"):
            parameter.add_(0.2 * noise)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(0.3 * torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[:, END] = 1.0  # so that sentences end, early and late


def aggregated_marian_sites(config: CapsuleAggregatedMarianConfig) -> Sites:
    """Which sites a full forward pass must report, written down from the documentation of the output class."""
    sites: Sites = {}
    routed = config.layer_aggregation in ("em_routing", "dynamic_routing")
    for side, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if routed and config.layer_aggregation_side in ("both", side):
            capsules = config.layer_num_capsules or config.d_model
            sites[f"{side}.layer_aggregation"] = Site(config.layer_routing_iterations, side, depth, capsules)
    for kind, site, heads, depth in (
        ("encoder_self", "encoder.layers.{}.self_attn", config.encoder_attention_heads, config.encoder_layers),
        ("decoder_self", "decoder.layers.{}.self_attn", config.decoder_attention_heads, config.decoder_layers),
        ("decoder_cross", "decoder.layers.{}.encoder_attn", config.decoder_attention_heads, config.decoder_layers),
    ):
        if config.head_aggregation != "none" and kind in config.head_aggregation_attentions:
            for layer in range(depth):
                if config.head_aggregation_layers is None or layer in config.head_aggregation_layers:
                    capsules = config.head_num_capsules or config.d_model
                    sites[site.format(layer)] = Site(config.head_routing_iterations, site[:7], heads, capsules)
    return sites


def past_future_sites(config: Any) -> Sites:
    """Where past and future are told apart by assigning the words of the source."""
    if config.past_future == "guided_routing":
        capsules = config.past_capsules + config.future_capsules + config.redundant_capsules
        return {"past_future": Site(config.guided_routing_iterations, "decoder", None, capsules)}
    if config.past_future == "classifier":
        groups = 3 if config.redundant_capsules else 2
        return {"past_future": Site(1, "decoder", None, groups, starts_uniform=False)}
    if config.past_future == "attention":
        return {"past_future": Site(1, "decoder", None, 2, over="inputs", starts_uniform=False)}
    return {}


def gdr_marian_sites(config: GDRMarianConfig) -> Sites:
    """Those of the aggregations, and past and future."""
    return {**aggregated_marian_sites(config), **past_future_sites(config)}


AGGREGATED_MARIAN = Family(
    name="capsule_aggregated_marian",
    config=CapsuleAggregatedMarianConfig,
    model=CapsuleAggregatedMarianModel,
    translation=CapsuleAggregatedMarianForConditionalGeneration,
    sizes={
        "vocab_size": 61,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 40,
        "max_position_embeddings": 40,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "forced_eos_token_id": None,
        "dropout": 0.0,
        "init_std": 0.2,
    },
    configs={
        "plain": {"layer_aggregation": "none"},
        "em": {},
        "em_everywhere": {"head_aggregation": "em_routing", "head_aggregation_attentions": ALL_ATTENTIONS},
        "em_gated_everywhere": {
            "aggregation_output": "gated",
            "layer_num_capsules": 16,
            "head_aggregation": "em_routing",
            "head_aggregation_attentions": ALL_ATTENTIONS,
            "head_num_capsules": 8,
            "head_vote_sharing": "per_head",
        },
        "em_own_layer_replace": {
            "layer_capsule_inputs": "own_layer",
            "aggregation_output": "replace",
            "layer_routing_iterations": 4,
            "em_variance_floor": 0.1,
            "stop_assignment_gradient": True,
            "scale_embedding": True,
        },
        "dynamic_encoder_replace": {
            "layer_aggregation": "dynamic_routing",
            "layer_aggregation_side": "encoder",
            "aggregation_output": "replace",
            "layer_num_capsules": 8,
            "layer_routing_iterations": 2,
        },
        "dynamic_decoder_simple_heads": {
            "layer_aggregation": "dynamic_routing",
            "layer_aggregation_side": "decoder",
            "layer_capsule_inputs": "own_layer",
            "head_aggregation": "simple_routing",
            "head_aggregation_attentions": ("decoder_self", "decoder_cross"),
            "head_aggregation_layers": (0, 2),
            "stop_assignment_gradient": True,
        },
        "simple_heads_only": {
            "layer_aggregation": "none",
            "head_aggregation": "simple_routing",
            "head_aggregation_layers": [1],
            "head_routing_iterations": 2,
            "head_vote_sharing": "per_head",
            "head_num_capsules": 4,
        },
        "dynamic_combination_gated": {"layer_aggregation": "dynamic_combination", "aggregation_output": "gated"},
        "linear_combination_replace": {"layer_aggregation": "linear_combination", "aggregation_output": "replace"},
        "two_vocabularies": {
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 53,
            "head_aggregation": "em_routing",
            "head_aggregation_layers": [0],
        },
        "untied": {
            "tie_word_embeddings": False,
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 67,
            "layer_aggregation": "dynamic_combination",
        },
    },
    choices={
        "layer_aggregation": marian_options.LAYER_AGGREGATIONS,
        "layer_aggregation_side": marian_options.LAYER_AGGREGATION_SIDES,
        "layer_capsule_inputs": marian_options.LAYER_CAPSULE_INPUTS,
        "aggregation_output": marian_options.AGGREGATION_OUTPUTS,
        "head_aggregation": marian_options.HEAD_AGGREGATIONS,
        "head_aggregation_attentions": marian_options.HEAD_AGGREGATION_ATTENTIONS,
        "head_vote_sharing": marian_options.HEAD_VOTE_SHARING,
        "stop_assignment_gradient": (True, False),
        "share_encoder_decoder_embeddings": (True, False),
        "tie_word_embeddings": (True, False),
        "scale_embedding": (True, False),
    },
    routing_sites=aggregated_marian_sites,
    routing_functions=(
        "hf_capsule_mt.modeling.capsule_router:em_routing",
        "hf_capsule_mt.modeling.capsule_router:dynamic_routing",
    ),
    chosen=("em_gated_everywhere", "em_everywhere", "dynamic_decoder_simple_heads"),
    shallow={"encoder_layers": 1, "decoder_layers": 1, "head_aggregation_layers": None},
)

GDR_MARIAN = Family(
    name="gdr_marian",
    config=GDRMarianConfig,
    model=GDRMarianModel,
    translation=GDRMarianForConditionalGeneration,
    sizes={
        **AGGREGATED_MARIAN.sizes,
        "past_capsules": 2,
        "future_capsules": 3,
        "redundant_capsules": 1,
        "capsule_dim": 6,
        "bow_loss_weight": 0.2,
        "bca_loss_weight": 0.1,
    },
    configs={
        "off": {"past_future": "none"},
        "guided": {},
        "guided_sum": {"bow_reduction": "sum", "bow_loss_weight": 1, "bca_loss_weight": 1.0},
        "guided_alone": {
            "past_capsules": 1,
            "future_capsules": 1,
            "redundant_capsules": 0,
            "capsule_dim": 5,
            "guided_routing_iterations": 4,
            "bow_loss_weight": 0,
            "bca_loss_weight": 0.0,
            "scale_embedding": True,
        },
        # Every inherited field has a value of its own here.
        "guided_with_aggregation": {
            "layer_aggregation": "em_routing",
            "layer_aggregation_side": "decoder",
            "layer_capsule_inputs": "own_layer",
            "layer_num_capsules": 16,
            "layer_routing_iterations": 2,
            "aggregation_output": "gated",
            "head_aggregation": "simple_routing",
            "head_aggregation_attentions": ALL_ATTENTIONS,
            "head_aggregation_layers": [0, 1],
            "head_num_capsules": 8,
            "head_routing_iterations": 2,
            "head_vote_sharing": "per_head",
            "em_variance_floor": 0.5,
            "stop_assignment_gradient": True,
            "past_capsules": 3,
            "redundant_capsules": 2,
            "guided_routing_iterations": 2,
        },
        "classifier": {"past_future": "classifier", "redundant_capsules": 2, "bca_loss_weight": 0},
        "classifier_two_groups": {
            "past_future": "classifier",
            "redundant_capsules": 0,
            "bow_loss_weight": 0,
            "layer_aggregation": "linear_combination",
        },
        "attention": {"past_future": "attention", "past_capsules": 4},
        "guided_two_vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53},
        "guided_untied": {
            "tie_word_embeddings": False,
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 67,
            "past_capsules": 1,
        },
    },
    choices={
        "past_future": past_future_options.PAST_FUTURES,
        "bow_reduction": past_future_options.BOW_REDUCTIONS,
        "layer_aggregation": ("none", "em_routing"),
        "head_aggregation": ("none", "simple_routing"),
        "share_encoder_decoder_embeddings": (True, False),
        "tie_word_embeddings": (True, False),
        "scale_embedding": (True, False),
    },
    routing_sites=gdr_marian_sites,
    routing_functions=(
        *AGGREGATED_MARIAN.routing_functions,
        "hf_capsule_mt.modeling.past_future:guided_routing",
        "hf_capsule_mt.modeling.past_future:guided_pooling",
    ),
    chosen=("guided_with_aggregation", "guided", "classifier"),
    shallow=AGGREGATED_MARIAN.shallow,
    gates=(*AGGREGATED_MARIAN.gates, "past_future.fc2.weight"),
    optional_blocks=("SourceVotes", "PastFuture"),
)

GDR_RNMT = Family(
    name="gdr_rnmt",
    config=GDRRNMTConfig,
    model=GDRRNMTModel,
    translation=GDRRNMTForConditionalGeneration,
    sizes={
        "vocab_size": 61,
        "d_model": 32,
        "recurrent_dim": 20,
        "attention_dim": 12,
        "encoder_layers": 2,
        "decoder_ffn_dim": 40,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "forced_eos_token_id": None,
        "dropout": 0.0,
        "init_std": 0.2,
        "past_capsules": 2,
        "future_capsules": 3,
        "redundant_capsules": 1,
        "capsule_dim": 5,
        "bow_loss_weight": 0.2,
        "bca_loss_weight": 0.1,
    },
    configs={
        "off": {"past_future": "none"},
        "guided": {},
        "guided_of_other_sizes": {
            "d_model": 28,
            "recurrent_dim": 16,
            "attention_dim": 9,
            "encoder_layers": 3,
            "decoder_ffn_dim": 24,
            "activation_function": "tanh",
            "scale_embedding": False,
            "past_capsules": 1,
            "future_capsules": 1,
            "redundant_capsules": 0,
            "capsule_dim": 6,
            "guided_routing_iterations": 4,
            "bow_loss_weight": 0,
            "bca_loss_weight": 0.0,
        },
        "recurrent": {"past_future": "recurrent"},
        "recurrent_alone": {"past_future": "recurrent", "bow_loss_weight": 0, "bca_loss_weight": 0},
        "classifier": {"past_future": "classifier", "redundant_capsules": 2, "bow_reduction": "sum"},
        "attention": {"past_future": "attention", "past_capsules": 4},
        "guided_two_vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53},
        "recurrent_untied": {
            "past_future": "recurrent",
            "tie_word_embeddings": False,
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 67,
        },
    },
    choices={
        "past_future": RNMT_PAST_FUTURES,
        "bow_reduction": past_future_options.BOW_REDUCTIONS,
        "share_encoder_decoder_embeddings": (True, False),
        "tie_word_embeddings": (True, False),
        "scale_embedding": (True, False),
    },
    routing_sites=past_future_sites,
    routing_functions=(
        "hf_capsule_mt.modeling.past_future:guided_routing",
        "hf_capsule_mt.modeling.past_future:guided_pooling",
    ),
    chosen=("guided", "recurrent", "classifier"),
    shallow={"encoder_layers": 1},
    without_gradient=(),
    gates=("past_future.fc2.weight",),
    optional_blocks=("SourceVotes", "PastFuture"),
    fixed_fields=(
        "vocab_size",
        "decoder_layers",
        "num_attention_heads",
        "dropout",
        "activation_dropout",
        "init_std",
        "use_cache",
        "is_encoder_decoder",
        "pad_token_id",
        "eos_token_id",
        "bos_token_id",
        "decoder_start_token_id",
        "forced_eos_token_id",
    ),
    make_cache=lambda config: RecurrentCache(),
    attentions=("eager",),
    encoder_width=lambda config: 2 * config.recurrent_dim,
    decoder_needs=("attention_keys",),
    adapted=("query", "word_inputs", "readout"),
    compiler_settings={"allow_rnn": True},
    rounding=1e-5,
)


def caps_nmt_sites(config: CapsNMTConfig) -> Sites:
    """One site, the capsule layer."""
    if config.source_aggregation == "pooling":
        return {}
    return {"encoder.capsules": Site(config.routing_iterations, "sentence", None, config.num_capsules)}


CAPS_NMT = Family(
    name="caps_nmt",
    config=CapsNMTConfig,
    model=CapsNMTModel,
    translation=CapsNMTForConditionalGeneration,
    sizes={
        "vocab_size": 61,
        "d_model": 32,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "forced_eos_token_id": None,
        "dropout": 0.0,
        "init_std": 0.2,
    },
    # Each strategy alone is in test_caps_nmt.py.
    configs={
        "capsules": {},
        "pooling": {"source_aggregation": "pooling"},
        "plain_capsules": {
            "num_capsules": 4,
            "routing_iterations": 2,
            "share_routing_weights": True,
            "position_aware_routing": False,
            "separable_scoring": False,
        },
        "one_iteration": {"routing_iterations": 1, "num_capsules": 1},
        "hybrid": {"decoder_context": "attention", "num_capsules": 2},
        "of_other_sizes": {
            "d_model": 18,
            "encoder_layers": 1,
            "decoder_layers": 4,
            "scale_embedding": False,
            "num_capsules": 8,
            "routing_iterations": 4,
            "separable_scoring": False,
        },
        "two_vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53},
        "untied": {
            "tie_word_embeddings": False,
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 67,
            "decoder_context": "attention",
        },
    },
    choices={
        "source_aggregation": caps_options.SOURCE_AGGREGATIONS,
        "decoder_context": caps_options.DECODER_CONTEXTS,
        "share_routing_weights": (True, False),
        "position_aware_routing": (True, False),
        "separable_scoring": (True, False),
        "share_encoder_decoder_embeddings": (True, False),
        "tie_word_embeddings": (True, False),
        "scale_embedding": (True, False),
    },
    routing_sites=caps_nmt_sites,
    routing_functions=("hf_capsule_mt.modeling.source_capsules:sequence_routing",),
    chosen=("hybrid", "capsules", "pooling"),
    shallow={"encoder_layers": 1, "decoder_layers": 1},
    without_gradient=(),
    gates=(),
    optional_blocks=("WordAttention",),
    fixed_fields=tuple(name for name in GDR_RNMT.fixed_fields if name not in ("decoder_layers", "activation_dropout")),
    make_cache=lambda config: RecurrentCache(),
    attentions=("eager",),
    decoder_needs=("source_context", "attention_keys"),
    adapted=("votes", "projection"),
    compiler_settings={"allow_rnn": True},
    rounding=1e-5,
)

FAMILIES = (AGGREGATED_MARIAN, GDR_MARIAN, GDR_RNMT, CAPS_NMT)

CASES = [Case(family, name) for family in FAMILIES for name in family.configs]
CHOSEN = [Case(family, name) for family in FAMILIES for name in family.chosen]

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
every_case = pytest.mark.parametrize("case", CASES, ids=str)
chosen_cases = pytest.mark.parametrize("case", CHOSEN, ids=str)


def assert_same_output(family: Family, actual: Tensor, expected: Tensor) -> None:
    """Of a model that was saved and loaded: the same numbers, bit for bit where the family's products allow."""
    if family.rounding:
        assert_close(actual, expected, family.rounding)
    else:
        assert torch.equal(actual, expected)
