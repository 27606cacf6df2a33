"""Strict configurations: every problem of a config is found, then all are raised as one ValueError."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from hf_capsule_mt.configuration.carried_code import CarriedCode

Values = dict[str, Any]

# Tokens that a translation model can do without.
OPTIONAL_TOKENS = ("eos_token_id", "forced_eos_token_id", "bos_token_id")


# What a configuration file may say of the weights' type; code may also give PyTorch's own objects.
DTYPES = ("float32", "float", "bfloat16", "float16", "half", "float64", "double", "float8_e4m3fn", "float8_e5m2")

MAPPINGS = ("id2label", "label2id", "quantization_config", "auto_map", "custom_pipelines")


def problem(field: str, value: Any, rule: str, fix: str) -> str:
    """One line of the error: which field, its value, the rule it breaks and how to mend it."""
    return f"{field}={value!r}: {rule}. Fix: {fix}."


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def check_choice(values: Values, field: str, choices: Iterable[str]) -> list[str]:
    value, allowed = values[field], list(choices)
    if isinstance(value, str) and value in allowed:
        return []
    close = difflib.get_close_matches(str(value), allowed, n=1)
    fix = f"use {(close or allowed)[0]!r}"
    return [problem(field, value, f"must be one of {', '.join(map(repr, allowed))}", fix)]


def check_activation(values: Values, field: str, usual: str) -> list[str]:
    """The name of an activation function that Transformers has."""
    value, known = values[field], activation_names()
    if isinstance(value, str) and (value in known or not known):
        return []
    close = difflib.get_close_matches(value.lower(), known, n=3, cutoff=0.6) if isinstance(value, str) else []
    fix = f"use {' or '.join(map(repr, close or [usual]))}"
    return [problem(field, value, "must be the name of an activation function of Transformers", fix)]


def activation_names() -> list[str]:
    """The activation functions of Transformers; none where PyTorch, which they are made of, is missing."""
    try:
        from transformers.activations import ACT2FN
    except ImportError:
        return []
    return sorted(ACT2FN)


def check_integer(values: Values, field: str, least: int, optional: bool = False) -> list[str]:
    value = values[field]
    if (value is None and optional) or (is_integer(value) and value >= least):
        return []
    rule = f"must be an integer of at least {least}" + (", or None" if optional else "")
    return [problem(field, value, rule, f"set it to {least} or more")]


def check_token_ids(values: Values, field: str, count: int | None) -> list[str]:
    """None, a token id or a list of them, each below `count` where the size of the vocabulary is known."""
    value = values[field]
    ids = value if isinstance(value, list) else [value]
    if value is None or all(is_integer(token) and 0 <= token < (count or token + 1) for token in ids):
        return []
    rule = "must be a token id" + ("" if count is None else f", 0 to {count - 1} with this vocabulary,")
    return [problem(field, value, f"{rule} or None", "take it from the tokenizer")]


def check_special_tokens(values: Values) -> list[str]:
    """The vocabularies of a translation model, and the tokens that have a meaning in them."""
    problems = check_integer(values, "decoder_vocab_size", least=1, optional=True)
    # Both are rows of an embedding: the padding row is that of the smaller vocabulary too.
    counts = [values[field] for field in ("vocab_size", "decoder_vocab_size")]
    sizes = [count for count in counts if is_integer(count) and count >= 1]
    for field in ("pad_token_id", "decoder_start_token_id"):
        if sizes and not (is_integer(values[field]) and 0 <= values[field] < min(sizes)):
            rule = f"must be a token id, 0 to {min(sizes) - 1} with this vocabulary"
            problems.append(problem(field, values[field], rule, "take it from the tokenizer"))
    for field in OPTIONAL_TOKENS:
        problems += check_token_ids(values, field, max(sizes, default=None))
    return problems


def check_number(values: Values, field: str, test: Callable[[Any], bool], rule: str, fix: str) -> list[str]:
    value = values[field]
    return [] if is_number(value) and test(value) else [problem(field, value, rule, fix)]


def check_flag(values: Values, field: str) -> list[str]:
    value = values[field]
    return [] if isinstance(value, bool) else [problem(field, value, "must be True or False", "use True or False")]


def check_divides(values: Values, field: str, whole: str) -> list[str]:
    """`field` (None = all of `whole`) must divide `whole`; silent while either is no integer, others say that."""
    part, total = values[field], values[whole]
    if not is_integer(part) or not is_integer(total) or part < 1 or total < 1 or total % part == 0:
        return []
    below = max(number for number in range(1, min(part, total) + 1) if total % number == 0)
    return [problem(field, part, f"must divide {whole}={total}", f"use {below}, or a different {whole}")]


def check_names(known: Iterable[str], values: Values, declared: Iterable[str]) -> list[str]:
    """A given name that nobody declares and that is close to one of ours is taken for a slip of the pen."""
    ours, others = list(known), set(declared)
    problems = []
    for name in values:
        if name in others or name in ours:
            continue
        close = difflib.get_close_matches(name.lower().replace("-", "_"), ours, n=1, cutoff=0.8)
        if close:
            problems.append(problem(name, values[name], "no field has this name", f"write {close[0]}"))
    return problems


def check_base(cls: type, given: Values, declared: Iterable[str]) -> list[str]:
    """What Transformers' own base takes without a look and trips over later."""
    ours, problems = set(declared), []
    for name, value in given.items():
        if name in ("dtype", "torch_dtype"):
            # Configurations do not import PyTorch: its objects are known by their type's name.
            if not (value is None or type(value).__name__ == "dtype" or (isinstance(value, str) and value in DTYPES)):
                rule = f"must be a torch.dtype, or one of {', '.join(map(repr, DTYPES))}"
                problems.append(problem(name, value, rule, "use 'float32'"))
        elif name in MAPPINGS:
            if not (value is None or isinstance(value, dict) or hasattr(value, "to_dict")):
                problems.append(problem(name, value, "must be a mapping, or None", "leave it out"))
        elif name not in ours and _is_taken(cls, name):
            problems.append(problem(name, value, "is a name that the class itself needs", "leave it out"))
    return problems


def _is_taken(cls: type, name: str) -> bool:
    """Whether setting the attribute would fail, or hide what the class needs."""
    attribute = inspect.getattr_static(cls, name, None)
    if isinstance(attribute, property):
        return attribute.fset is None
    return name.startswith("__") or callable(attribute) or isinstance(attribute, classmethod | staticmethod | dict)


class CheckedConfig(CarriedCode):
    """Goes before a configuration class of Transformers in the bases of ours.

    `find_problems(values)`, which subclasses define, is asked before a config is built, saved or made into a model.
    Not a configuration itself: as a dataclass it would put the base's defaults in the place of the other parent's.
    """

    model_type: ClassVar[str]
    attribute_map: ClassVar[dict[str, str]]

    # `from_pretrained` also takes checkpoints of these families and starts ours from their weights.
    warm_start_model_types: ClassVar[tuple[str, ...]] = ()

    # Left at their defaults, these may be set after construction, as Transformers does with token ids; a model is not
    # built and a config not saved before they are right.
    checked_when_used: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        # The base class turns the subclass into a dataclass here and generates its constructor. Ours goes around it:
        # the base reports the first wrong type only, and only of some fields.
        super().__init_subclass__(*args, **kwargs)
        generated: Callable[..., None] = cls.__init__

        @wraps(generated)
        def checked_init(self: "CheckedConfig", **given: Any) -> None:
            if type(self) is cls:
                # Aliases last: where a checkpoint has both names, Transformers lets the alias win.
                ordered = sorted(given, key=lambda name: name in cls.attribute_map)
                given = {cls.attribute_map.get(name, name): given[name] for name in ordered}
                defaults = field_defaults(cls)
                problems = check_given(cls, given) + check_base(cls, given, defaults)
                problems += cls.find_problems({**defaults, **given})
                unstated = tuple(f"{name}=" for name in cls.checked_when_used if name not in given)
                _raise(cls, [line for line in problems if not line.startswith(unstated)])
            try:
                generated(self, **given)
            except Exception as error:
                # Of Transformers' own checks of types, and of what it does with a value that none of them looks at.
                if isinstance(error, TypeError | AttributeError | LookupError) or "Strict" in type(error).__name__:
                    reason = " ".join(str(error).split())
                    raise ValueError(f"{cls.__name__}: Transformers does not take these values: {reason}") from error
                raise

        cls.__init__ = checked_init  # type: ignore[assignment, method-assign]

    @classmethod
    def find_problems(cls, values: Values) -> list[str]:
        """Every rule that `values`, one for each field, breaks; see `problem` for the form."""
        return []

    def check(self) -> None:
        """Raise one ValueError that lists every problem; for configs that were changed after construction."""
        _raise(type(self), self.find_problems({name: getattr(self, name) for name in field_defaults(type(self))}))

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as usual, but never a configuration that could not be loaded again."""
        self.check()
        super().save_pretrained(*args, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: Values, **kwargs: Any) -> Any:
        """Build from a checkpoint's values; overrides in `kwargs` follow the same rules, names included."""
        result = super().from_dict(config_dict, **kwargs)  # type: ignore[misc]
        config = result[0] if isinstance(result, tuple) else result
        values = {name: getattr(config, name) for name in field_defaults(cls)}
        _raise(cls, check_given(cls, kwargs) + cls.find_problems(values))
        return result

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> tuple[Values, Values]:
        """Read a checkpoint's config; one of a family this one cannot start from is a clear error."""
        values, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)  # type: ignore[misc]
        found = values.get("model_type")
        if found in cls.warm_start_model_types:
            values = {name: value for name, value in values.items() if name not in ("auto_map", "custom_pipelines")}
            return {**values, "model_type": cls.model_type}, rest
        if found != cls.model_type and cls.model_type:
            accepted = ", ".join((cls.model_type, *cls.warm_start_model_types))
            raise ValueError(
                f"{pretrained_model_name_or_path} holds a checkpoint of model_type {found!r}; {cls.__name__} loads "
                f"{accepted}. Use the class of that checkpoint, or AutoModelForSeq2SeqLM, which picks it."
            )
        return values, rest


def field_defaults(cls: Any) -> Values:
    """Name and default of every declared field of a configuration class."""
    return {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in fields(cls)
        if not field.name.startswith("_")
    }


def own_fields(cls: type[CheckedConfig]) -> set[str]:
    """The fields that our classes add to those of the configuration they extend."""
    theirs = [base for base in cls.__mro__ if is_dataclass(base) and not issubclass(base, CheckedConfig)]
    return set(field_defaults(cls)).difference(*(field_defaults(base) for base in theirs))


def check_given(cls: type[CheckedConfig], given: Values) -> list[str]:
    """Misspelt names among the arguments of a constructor; anything else unknown is left to Transformers."""
    declared = set(field_defaults(cls)) | set(cls.attribute_map) | set(dir(PreTrainedConfig))
    return check_names(sorted(own_fields(cls)), given, declared)


def _raise(cls: type, problems: list[str]) -> None:
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ValueError(f"{cls.__name__} has {count}:\n" + "\n".join(f"- {line}" for line in problems))
