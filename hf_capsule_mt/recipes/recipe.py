"""Builds a recipe for a training run from a file and the command line, and checks it.

A recipe is a YAML file. Its keys are the fields of [`ModelRecipe`], [`DataRecipe`] and [`RecipeTrainingArguments`], in
any order. `config` and `cleaning` contain further keys. `extends: common.yaml` uses the settings of a file in the same
folder as defaults. On the command line each key is an argument, and arguments win over the file:
`--learning_rate 3e-4 --config.d_model 256 --init_from null`.
"""

import dataclasses
import math
import sys
from argparse import SUPPRESS, Action, ArgumentDefaultsHelpFormatter, Namespace
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import transformers
from transformers import HfArgumentParser
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from hf_capsule_mt.data import CleaningRules
from hf_capsule_mt.recipes.fields import (
    HELP_ALL,
    PARTS,
    DataRecipe,
    ModelRecipe,
    RecipeTrainingArguments,
    convert,
    field_types,
    nested_truth_word,
    nested_types,
)
from hf_capsule_mt.recipes.file import (
    Setting,
    Settings,
    closest,
    hide_inherited_values,
    read_settings,
    recipe_path,
    split_overrides,
    unflatten_settings,
)
from hf_capsule_mt.recipes.model import FAMILIES, FROM_TOKENIZER, build_config, config_fields
from hf_capsule_mt.training.arguments import number_problems

# The arguments of Transformers that `--help` shows.
SHOWN_IN_HELP = (
    "output_dir, max_steps, num_train_epochs, learning_rate, lr_scheduler_type, warmup_steps, adam_beta2, "
    "weight_decay, label_smoothing_factor, max_grad_norm, per_device_train_batch_size, per_device_eval_batch_size, "
    "gradient_accumulation_steps, bf16, fp16, eval_strategy, eval_steps, save_strategy, save_steps, save_total_limit, "
    "load_best_model_at_end, metric_for_best_model, logging_steps, seed, data_seed, use_cpu, dataloader_num_workers, "
    "report_to, disable_tqdm, resume_from_checkpoint, generation_max_length, generation_num_beams"
).split(", ")
UNSET = object()
CLEANING = [f"cleaning.{item.name}" for item in dataclasses.fields(CleaningRules)]


class Recipe(NamedTuple):
    """A complete recipe, and `explicit`: the settings of file and command line, which build the same recipe again."""

    model: ModelRecipe
    data: DataRecipe
    training: RecipeTrainingArguments
    explicit: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        config: Any = self.model.config
        return dict(config or {})


class HelpFormatter(ArgumentDefaultsHelpFormatter):
    """Shows each argument with one name and without a placeholder."""

    def _format_action_invocation(self, action: Action) -> str:
        choices = "" if action.choices is None else f" {'|'.join(map(str, action.choices))}"
        return action.option_strings[0] + choices if action.option_strings else str(action.metavar)


def recipe_parser(everything: bool = False) -> HfArgumentParser:
    """A parser with an argument for each key of a recipe. The help shows the most used, or all with `everything`."""
    parser = HfArgumentParser(
        PARTS,
        usage="train.py RECIPE [--key value …]",
        description="Train a translation model with a recipe. Each key of a recipe is also an argument, which wins.",
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="a YAML file, or the name of a recipe of the package, such as synthetic/dla_em",
    )
    parser.add_argument(HELP_ALL, action="help", default=SUPPRESS, help="show every argument of training and exit")
    stock = {item.name for item in dataclasses.fields(transformers.Seq2SeqTrainingArguments)} - set(SHOWN_IN_HELP)
    for action in parser._actions:
        if action.dest in stock and not everything:
            action.help = SUPPRESS
        if "--no_resume" in action.option_strings:
            action.help = "Never continue a run: it is an error if output_dir holds one."
    return parser


def parse_recipe(arguments: list[str] | None = None) -> Recipe:
    """The recipe of a command line, `RECIPE.yaml --key value`. One `ValueError` lists all problems."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = recipe_parser(everything=HELP_ALL in arguments)
    overrides, rest = split_overrides(arguments)
    kinds = field_types()
    # Absent arguments stay UNSET, because the recipe file goes before the defaults.
    parsed, unknown = parser.parse_known_args(rest, Namespace(**dict.fromkeys(kinds, UNSET)))
    names = [argument.partition("=")[0] for argument in unknown if argument.startswith("--")]
    valid_keys = [*kinds, *CLEANING, *(f"config.{name}" for family in FAMILIES for name in config_fields(family))]
    problems = [f"command line: no argument {name}{_suggestion(name, valid_keys, '--')}" for name in names]
    if problems or unknown:
        raise ValueError("\n".join(problems) or f"command line: {unknown[0]!r} belongs to no argument")
    file = recipe_path(parsed.recipe)
    settings = read_settings(file)
    settings |= {
        key: Setting(getattr(parsed, key), "command line") for key in kinds if getattr(parsed, key) is not UNSET
    }
    return build_recipe(settings | overrides, str(file))


def build_recipe(settings: Settings, name: str) -> Recipe:
    """Checks all settings together and builds the three parts of the recipe."""
    problems = []
    kinds = field_types()
    types = kinds | nested_types(settings["family"].value if "family" in settings else None)
    for key, setting in settings.items():
        if key not in types:
            continue
        converted, wrong = convert(setting.value, types[key])
        settings[key] = setting._replace(value=converted)
        problems += [f"{setting.where}: {key}={setting.shown} {wrong}"] if wrong else []
        if isinstance(setting.value, str) and not is_unicode(setting.value):
            problems.append(f"{setting.where}: {key} is no Unicode text: it holds a lone surrogate; write it again")
        if word := nested_truth_word(setting.value, key):
            inner = word[0] if setting.may_show else key
            problems.append(f"{setting.where}: {inner} is a word and must be a truth value; write {word[1]}")
    problems += [*_unknown_keys(settings, kinds), *_missing_keys(settings, name)]
    values = unflatten_settings(settings)
    family = values.get("family")
    try:
        CleaningRules(**({} if problems else values.get("cleaning", {})))
        # With init_from the checkpoint supplies the rest of the configuration; it is read later.
        if not problems and not values.get("init_from"):
            build_config(str(family), values.get("config", {}))
    except (ValueError, TypeError) as error:
        problems.append(f"{name}: {hide_inherited_values(str(error), settings)}")
    if problems:
        raise ValueError("\n".join(problems))
    try:
        parts = HfArgumentParser(PARTS).parse_dict(values)
    except (ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError) as error:
        raise ValueError(f"{name}: {hide_inherited_values(str(error), settings)}") from None
    recipe = Recipe(parts[0], parts[1], parts[2], values)
    problems = _conflicts(recipe, name)
    if problems:
        raise ValueError(hide_inherited_values("\n".join(problems), settings))
    if recipe.training.generation_max_length is None:
        recipe.training.generation_max_length = recipe.data.max_target_length
    return recipe


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8. Invalid bytes of a command line become lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _unknown_keys(settings: Settings, kinds: dict[str, Any]) -> list[str]:
    family = str(settings["family"].value) if "family" in settings else None
    valid_keys = [*kinds, *CLEANING]
    if family in FAMILIES:
        valid_keys += [f"config.{name}" for name in config_fields(family)]
    problems = []
    # Unknown keys of files that `extends` names are only counted: their text must not be repeated.
    unknown_counts: Counter[str] = Counter()
    for key, (_, where, may_show) in settings.items():
        prefix, dot, name = key.partition(".")
        if key in valid_keys or (prefix == "config" and family not in FAMILIES):
            continue
        if prefix == "config" and name in FROM_TOKENIZER:
            problems.append(f"{where}: {key} is set by the tokenizer; remove it, and set vocab_size")
            continue
        same_prefix = [one for one in valid_keys if one.startswith(f"{prefix}.")] if dot else []
        in_family = f" in family {family}" if prefix == "config" else ""
        dashes = "--" if where == "command line" else ""
        hint = _suggestion(key, same_prefix, dashes) or _suggestion(key, valid_keys, dashes)
        if may_show or closest(key, valid_keys):
            problems.append(f"{where}: no key {key!r}{in_family}{hint or f'; {HELP_ALL} lists the keys of a recipe'}")
        else:
            unknown_counts[where] += 1
    return problems + [
        f"{where}: {count} keys that no recipe has; is it a recipe?" for where, count in unknown_counts.items()
    ]


def _suggestion(name: str, valid_names: Iterable[str], dashes: str = "") -> str:
    close = closest(name, valid_names)
    return f"; did you mean {dashes}{close}?" if close else ""


def _missing_keys(settings: Settings, name: str) -> list[str]:
    problems = []
    for key, fix in (("family", ""), ("train", ": the training corpus"), ("output_dir", ": the folder of the run")):
        if key not in settings or settings[key].value is None:
            problems.append(f"{name}: {key} is missing{fix or ': one of ' + ', '.join(FAMILIES)}")
    if "family" in settings and settings["family"].value not in (None, *FAMILIES):
        setting = settings["family"]
        where, hint = setting.where, _suggestion(str(setting.value), FAMILIES)
        problems.append(f"{where}: family={setting.shown} must be one of {', '.join(FAMILIES)}{hint}")
    return problems


def _conflicts(recipe: Recipe, name: str) -> list[str]:
    """Describes values out of range and settings that exclude one another."""
    model, data, training = recipe.model, recipe.data, recipe.training
    problems = number_problems(vars(model), {"new_parameter_learning_rate": math.inf})
    if not math.isfinite(model.length_penalty):
        problems.append(f"length_penalty={model.length_penalty!r}: must be a finite number")
    if model.new_parameter_learning_rate is not None and model.init_from is None:
        problems.append("new_parameter_learning_rate needs init_from: without it all parameters are new")
    if training.eval_strategy != "no" and data.validation is None:
        problems.append(
            f"eval_strategy={str(training.eval_strategy)!r} needs a validation corpus; set one, or write no"
        )
    positions = recipe.config.get("max_position_embeddings")
    for key in ("max_source_length", "max_target_length"):
        length = getattr(data, key)
        is_explicit = recipe.explicit.get(key) is not None  # a default is lowered to the positions
        if length < 2 or (is_explicit and isinstance(positions, int) and length > positions):
            most = "" if positions is None else f" and at most config.max_position_embeddings={positions}"
            problems.append(f"{key}={length} must be at least 2{most}")
    installed = get_available_reporting_integrations()
    for place in [place for place in training.report_to or () if place not in installed]:
        wrong = "its library is not installed; install it, or" if place in INTEGRATION_TO_CALLBACK else "is unknown;"
        problems.append(f"report_to={place!r}: {wrong} choose from {', '.join(['none', *installed])}")
    for key in ("seed", "data_seed"):
        seed = getattr(training, key)
        if seed is not None and not 0 <= seed < 2**32:
            problems.append(f"{key}={seed}: must be an integer of at least 0 and below 2**32")
    for key in ("generation_num_beams", "generation_max_length"):
        value = getattr(training, key)
        if value is not None and value < 1:
            problems.append(f"{key}={value} must be at least 1")
    if model.num_beams < 1:
        problems.append(f"num_beams={model.num_beams} must be at least 1")
    return [f"{name}: {problem}" for problem in problems]
