"""The model of a recipe: a family with its configuration, from scratch or from the weights of a checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_capsule_mt import families
from hf_capsule_mt.checkpoint_names import reading_checkpoint
from hf_capsule_mt.configuration.config_checks import field_defaults
from hf_capsule_mt.data import marian_token_ids
from hf_capsule_mt.families import MARIAN
from hf_capsule_mt.modeling.saving.any_model import load_checked

FAMILIES = {MARIAN.name: MARIAN, **families.FAMILIES}
# A checkpoint's own: a model of another shape could not take its weights, or would silently leave some out.
SHAPE = (
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "recurrent_dim",
    "attention_dim",
    "max_position_embeddings",
)
# What the tokenizer says.
FROM_TOKENIZER = (
    "vocab_size",
    "decoder_vocab_size",
    "pad_token_id",
    "eos_token_id",
    "forced_eos_token_id",
    "bos_token_id",
    "decoder_start_token_id",
)
MEASURED = ("bow_accuracy",)  # at the end of training; nobody sets it


class BuiltModel(NamedTuple):
    """A model; after a warm start also the names of the parameters that the checkpoint did not have, and of those of
    the checkpoint that were left out."""

    model: PreTrainedModel
    missing_keys: frozenset[str] = frozenset()
    unused_keys: frozenset[str] = frozenset()


def config_fields(family: str) -> list[str]:
    """What a recipe may write under `config`."""
    return [name for name in field_defaults(FAMILIES[family].config) if name not in (*FROM_TOKENIZER, *MEASURED)]


def default_config(family: str) -> dict[str, Any]:
    """What the configuration of a family says where a recipe says nothing."""
    return field_defaults(FAMILIES[family].config)


def build_config(family: str, options: dict[str, Any], **token_ids: Any) -> PreTrainedConfig:
    """The configuration, checked; of stock Marian too, by the rules of our class."""
    values = {**options, **token_ids}
    if family == "marian":
        families.CapsuleAggregatedMarianConfig(layer_aggregation="none", **values)
    return FAMILIES[family].config(**values)


def checkpoint_config(family: str, init_from: str) -> dict[str, Any]:
    """What the configuration in `init_from` says; a checkpoint that the family cannot start from is an error."""
    folder, fix = Path(init_from), "Train it first with its own recipe, or give the folder or Hub id of another"
    if _is_path(init_from) and not folder.is_dir():
        raise ValueError(f"init_from={init_from!r}: no such folder. {fix}")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"init_from={init_from!r}: the folder holds no config.json, so no checkpoint. {fix}")
    try:
        with reading_checkpoint(init_from):
            values, _ = FAMILIES[family].config.get_config_dict(init_from)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"init_from={init_from!r}: no checkpoint can be read there. {fix} ({reason})") from error
    if family == "marian" and values.get("model_type") != "marian":  # the other families look themselves
        raise ValueError(f"init_from={init_from!r} is of model_type {values.get('model_type')!r}; use that family")
    return values


def _is_path(name: str) -> bool:
    """Whether a name is clearly of this machine, and no id of the Hub, which has one slash at most."""
    first = name.partition("/")[0]
    return name.startswith((".", "~")) or name.count("/") > 1 or first in ("", "runs") or Path(first).is_dir()


def build_model(
    family: str, options: dict[str, Any], tokenizer: PreTrainedTokenizerBase, init_from: str | None = None
) -> BuiltModel:
    """A new model for the tokenizer, or one that starts from the weights of `init_from`, whose vocabulary it keeps."""
    token_ids = marian_token_ids(tokenizer)
    kind: Any = FAMILIES[family].translation_model
    if init_from is None:
        return BuiltModel(kind(build_config(family, options, **token_ids)))
    problems = _differences(options, token_ids, checkpoint_config(family, init_from))
    if problems:
        raise ValueError(
            f"init_from={init_from!r} does not fit the recipe: " + "; ".join(problems) + ". Take the values of the "
            "checkpoint, and its tokenizer"
        )
    model, report = load_checked(kind, init_from, dtype=torch.float32, use_safetensors=True, **options)
    return BuiltModel(model, frozenset(report["missing_keys"]), frozenset(report["unexpected_keys"]))


def _differences(options: dict[str, Any], token_ids: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Where the shape or the vocabulary of a recipe is not that of the checkpoint."""
    problems = [
        f"config.{name}={options[name]!r}, and {there[name]!r} in the checkpoint"
        for name in SHAPE
        if name in options and name in there and options[name] != there[name]
    ]
    size = there.get("vocab_size")
    if isinstance(size, int) and token_ids["vocab_size"] > size:
        problems.append(f"the tokenizer has {token_ids['vocab_size']} tokens, and the checkpoint {size}")
    for name in ("pad_token_id", "eos_token_id"):
        if name in there and there[name] != token_ids[name]:
            problems.append(f"{name}={token_ids[name]!r} of the tokenizer, and {there[name]!r} in the checkpoint")
    return problems
