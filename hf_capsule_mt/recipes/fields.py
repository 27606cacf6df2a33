"""The keys of a recipe: three dataclasses with types, defaults and help texts."""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from hf_capsule_mt.data import CleaningRules
from hf_capsule_mt.recipes.model import FAMILIES, config_fields
from hf_capsule_mt.recipes.strict_yaml import number_of
from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments

HELP_ALL = "--help_all"
# Words that are not truth values in YAML 1.2, or that are in quotes, and their replacements.
TRUTH_WORDS = dict.fromkeys(("yes", "y", "on", "true"), "true") | dict.fromkeys(("no", "n", "off", "false"), "false")


@dataclass
class ModelRecipe:
    """The model and its beam search."""

    _argument_group_name: ClassVar[str] = "model"

    family: str | None = field(default=None, metadata={"help": f"One of {', '.join(FAMILIES)}."})
    config: dict | str | None = field(
        default=None, metadata={"help": "Fields of the family's configuration; to set one: --config.d_model 256."}
    )
    init_from: str | None = field(
        default=None,
        metadata={"help": "Warm start: folder or Hub id of a trained checkpoint of Marian or of this package."},
    )
    new_parameter_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the parameters that are not in init_from; None for learning_rate."},
    )
    num_beams: int = field(default=4, metadata={"help": "Beams of the final translations."})
    license: str = field(
        default="unknown",
        metadata={"help": "License of the trained model, for its card: a Hub id such as apache-2.0."},
    )
    length_penalty: float = field(
        default=1.0, metadata={"help": "Divide sums of log-probabilities by the length to this power."}
    )


@dataclass
class DataRecipe:
    """Corpora and vocabulary. `load_corpus` lists the forms of a corpus."""

    _argument_group_name: ClassVar[str] = "data"

    train: str | None = field(
        default=None,
        metadata={
            "help": "Training corpus: data/train for data/train.en and .de; x.tsv; x.csv; x.parquet; synthetic:9."
        },
    )
    validation: str | None = field(default=None, metadata={"help": "Corpus for evaluation during training."})
    test: str | None = field(default=None, metadata={"help": "Corpus to translate at the end."})
    source: str = field(default="en", metadata={"help": "Source language."})
    target: str = field(default="de", metadata={"help": "Target language."})
    source_column: str | None = field(
        default=None,
        metadata={"help": "Column of the sources; None to find it by the language, or by a name such as source."},
    )
    target_column: str | None = field(default=None, metadata={"help": "Column of the targets, likewise."})
    header: bool | None = field(
        default=None,
        metadata={"help": "Whether a TSV or CSV file starts with a header; None to decide by its first row."},
    )
    cleaning: dict | str | None = field(
        default=None,
        metadata={
            "help": "Fields of CleaningRules, for the training corpus only; to set one: --cleaning.max_words 100."
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub id; None for that of init_from, or to train one on the training corpus."},
    )
    vocab_size: int = field(default=8_000, metadata={"help": "Size of a joint vocabulary trained by this run."})
    max_source_length: int = field(default=256, metadata={"help": "Most tokens of a source; longer ones are cut."})
    max_target_length: int = field(default=256, metadata={"help": "Most tokens of a target and of a translation."})
    repair: bool = field(
        default=False, metadata={"help": "Repair and count invalid characters; otherwise they are errors."}
    )
    corpus_seed: int = field(
        default=0, metadata={"help": "Seed of synthetic corpora; use the same for runs that you compare."}
    )
    num_proc: int | None = field(default=None, metadata={"help": "Number of processes that clean and tokenize."})
    cache_dir: str | None = field(default=None, metadata={"help": "Folder for cleaned corpora."})


@dataclass
class RecipeTrainingArguments(CapsuleSeq2SeqTrainingArguments):
    """[`CapsuleSeq2SeqTrainingArguments`] with defaults for translation."""

    _argument_group_name: ClassVar[str] = f"training (the most used; to see all: {HELP_ALL})"

    predict_with_generate: bool = field(
        default=True, metadata={"help": "Evaluate by translating, with BLEU and chrF."}
    )
    generation_num_beams: int | None = field(default=1, metadata={"help": "Beams of evaluations during training."})
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Where to report, apart from the output folder, e.g. tensorboard."}
    )
    resume: bool = field(
        default=True,
        metadata={"help": "Continue from the last checkpoint in output_dir, if there is one."},
    )
    resume_from_last_good: bool = field(
        default=False,
        metadata={"help": "Move damaged checkpoints aside and continue from the newest complete one."},
    )


PARTS: Any = (ModelRecipe, DataRecipe, RecipeTrainingArguments)


def field_types() -> dict[str, Any]:
    """The type of each key of a recipe, without the nested keys."""
    return {
        item.name: hints[item.name]
        for part in PARTS
        for hints in [typing.get_type_hints(part)]
        for item in dataclasses.fields(part)
        if item.init
    }


def nested_types(family: Any) -> dict[str, Any]:
    """The type of each key of `cleaning` and, for an existing family, of `config`. The keys are dotted names."""
    value_types = {f"cleaning.{name}": value_type for name, value_type in typing.get_type_hints(CleaningRules).items()}
    if isinstance(family, str) and family in FAMILIES:
        hints = typing.get_type_hints(FAMILIES[family].config, localns={"torch": torch})
        value_types |= {f"config.{name}": hints[name] for name in config_fields(family)}
    return value_types


def convert(value: Any, value_type: Any) -> tuple[Any, str]:
    """The value converted to the type `value_type`, and a description of the problem or "". Text may hold a number."""
    accepted = _alternatives(value_type)
    if isinstance(value, str) and str not in accepted and {int, float} & set(accepted):
        number = number_of(value)
        value = value if number is None else number
    if isinstance(value, float) and value.is_integer() and int in accepted and float not in accepted:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in accepted and int not in accepted:
        value = float(value) if abs(value) < 1e300 else math.inf
    if isinstance(value, float) and math.isnan(value):
        return value, "is not a number"
    if any(_fits(value, one) for one in accepted):
        return value, ""
    expected = " or ".join(map(_name, accepted))
    truth_value = TRUTH_WORDS.get(value.lower()) if isinstance(value, str) and bool in accepted else None
    fix = f"; write {truth_value}" if truth_value else ""
    return value, f"is of type {type(value).__name__} and must be {expected}{fix}"


def nested_truth_word(value: Any, name: str) -> tuple[str, str] | None:
    """The dotted name of the first `no`, `off`, `yes` or `on` in lists and mappings, and its replacement.

    These entries have no declared type, and libraries treat every non-empty word as true.
    """
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        inner = f"{name}.{key}"
        if isinstance(entry, str) and len(entry) > 1 and entry.lower() in TRUTH_WORDS:
            return inner, TRUTH_WORDS[entry.lower()]
        if first_in_entry := nested_truth_word(entry, inner):
            return first_in_entry
    return None


def _alternatives(value_type: Any) -> tuple[Any, ...]:
    union = typing.get_origin(value_type) in (typing.Union, types.UnionType)
    return typing.get_args(value_type) if union else (value_type,)


def _fits(value: Any, value_type: Any) -> bool:
    """Whether the value and all its entries have this type."""
    origin, arguments = typing.get_origin(value_type), typing.get_args(value_type)
    if value_type is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(entry, arguments[0]) for entry in value)
    if origin is dict:
        names = isinstance(value, dict) and all(_fits(name, arguments[0]) for name in value)
        return names and all(_fits(entry, arguments[1]) for entry in value.values())
    if isinstance(value, bool):
        return value_type is bool
    return isinstance(value, origin or value_type) or (value_type is float and isinstance(value, int))


def _name(value_type: Any) -> str:
    if value_type is types.NoneType:
        return "nothing"
    return str(value_type) if typing.get_origin(value_type) else getattr(value_type, "__name__", str(value_type))
