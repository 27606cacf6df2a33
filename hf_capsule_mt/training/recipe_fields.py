"""The keys of a recipe: the fields of three dataclasses, their types and their defaults."""

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments
from hf_capsule_mt.training.recipe_model import FAMILIES

HELP_ALL = "--help_all"


@dataclass
class ModelRecipe:
    """The model, and how it translates."""

    _argument_group_name: ClassVar[str] = "model"

    family: str | None = field(default=None, metadata={"help": f"One of {', '.join(FAMILIES)}."})
    config: dict | str | None = field(
        default=None, metadata={"help": "Fields of the family's configuration; one alone: --config.d_model 256."}
    )
    init_from: str | None = field(
        default=None,
        metadata={"help": "Warm start: folder or Hub id of a trained checkpoint, Marian or of this package."},
    )
    new_parameter_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the parameters that init_from does not have; None for learning_rate."},
    )
    num_beams: int = field(default=4, metadata={"help": "Beams of the final translations."})
    license: str = field(
        default="unknown", metadata={"help": "Of the trained model, for its card: an id of the Hub, apache-2.0 say."}
    )
    length_penalty: float = field(
        default=1.0, metadata={"help": "Sums of log-probabilities are divided by length to this power."}
    )


@dataclass
class DataRecipe:
    """Corpora and vocabulary. What a corpus may be is in `load_corpus`."""

    _argument_group_name: ClassVar[str] = "data"

    train: str | None = field(
        default=None,
        metadata={"help": "Training corpus: data/train for data/train.en and data/train.de; x.tsv; synthetic:30000."},
    )
    validation: str | None = field(default=None, metadata={"help": "Corpus for evaluation while training."})
    test: str | None = field(default=None, metadata={"help": "Corpus that is translated at the end."})
    source: str = field(default="en", metadata={"help": "Source language."})
    target: str = field(default="de", metadata={"help": "Target language."})
    cleaning: dict | str | None = field(
        default=None,
        metadata={"help": "Fields of CleaningRules, for the training corpus alone; one: --cleaning.max_words 100."},
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub id; None for that of init_from, or to train one on the training corpus."},
    )
    vocab_size: int = field(default=8_000, metadata={"help": "Size of the joint vocabulary that is trained."})
    max_source_length: int = field(default=256, metadata={"help": "Tokens of a source; longer ones are cut."})
    max_target_length: int = field(default=256, metadata={"help": "Tokens of a target, and of a translation."})
    repair: bool = field(
        default=False, metadata={"help": "Repair and count invalid UTF-8 and the like; else that is an error."}
    )
    corpus_seed: int = field(
        default=0, metadata={"help": "For synthetic corpora; runs that are compared should share it."}
    )
    num_proc: int | None = field(default=None, metadata={"help": "Processes that clean and tokenize."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where cleaned corpora are kept."})


@dataclass
class RecipeTrainingArguments(CapsuleSeq2SeqTrainingArguments):
    """[`CapsuleSeq2SeqTrainingArguments`] with defaults for translation."""

    _argument_group_name: ClassVar[str] = f"training (the most used; all of them: {HELP_ALL})"

    predict_with_generate: bool = field(
        default=True, metadata={"help": "Evaluate by translating, with BLEU and chrF."}
    )
    generation_num_beams: int | None = field(default=1, metadata={"help": "Beams of evaluation while training."})
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Where to report to beside the output folder, e.g. tensorboard."}
    )
    resume: bool = field(
        default=True,
        metadata={"help": "Go on from the last checkpoint in output_dir, if there is one; else that is an error."},
    )


PARTS: Any = (ModelRecipe, DataRecipe, RecipeTrainingArguments)


def field_types() -> dict[str, Any]:
    """Every key of a recipe but the nested ones, and its type."""
    return {
        item.name: hints[item.name]
        for part in PARTS
        for hints in [typing.get_type_hints(part)]
        for item in dataclasses.fields(part)
        if item.init
    }


def convert(value: Any, kind: Any) -> tuple[Any, str]:
    """The value as a field of type `kind` takes it, and what is wrong with it; a number may be written as text."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    kinds = tuple(typing.get_origin(one) or one for one in (typing.get_args(kind) if union else (kind,)))
    if isinstance(value, str) and str not in kinds:
        for number in (int, float):
            if number in kinds:
                try:
                    return number(value), ""
                except ValueError:
                    pass
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value), ""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (whole and float in kinds) or (bool in kinds if isinstance(value, bool) else isinstance(value, kinds)):
        return value, ""
    wanted = " or ".join("nothing" if one is types.NoneType else getattr(one, "__name__", str(one)) for one in kinds)
    return value, f"is of type {type(value).__name__} and must be {wanted}"
