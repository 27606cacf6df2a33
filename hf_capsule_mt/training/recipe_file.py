"""Recipe files: YAML that may build on another file, read into settings that remember where they were written."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

EXTENDS = "extends"
# Keys whose value is a mapping. Its entries are settings of their own, `config.d_model`, in files and in overrides.
NESTED = ("config", "cleaning")


class Setting(NamedTuple):
    """A value and the file, or the command line, that it stands in."""

    value: Any
    where: str


Settings = dict[str, Setting]


class RecipeLoader(yaml.SafeLoader):
    """Safe YAML, with the numbers and truth values of YAML 1.2 (`1e-3` is a number, `no` is a word), and keys that
    come once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key, (key_node, _) in zip(keys, node.value, strict=True):
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} comes twice", key_node.start_mark)
        return super().construct_mapping(node, deep)


_FLOAT, _BOOL = "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool"
RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_FLOAT, _BOOL)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# After the integers, which this pattern knows too.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
RecipeLoader.add_implicit_resolver(_FLOAT, _NUMBER, list("-+.0123456789"))
RecipeLoader.add_implicit_resolver(_BOOL, re.compile("(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, RecipeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: cannot be read as YAML: {' '.join(str(error).split())}") from error


def read_settings(path: str | Path, above: tuple[Path, ...] = ()) -> Settings:
    """The settings of a recipe and of the file that it extends, its own winning; nested ones as `config.d_model`."""
    path = Path(path)
    if path.resolve() in above:
        raise ValueError(f"{path}: extends itself, by way of {above[-1].name}")
    content = parse_yaml(_text(path, above), str(path))
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds {type(content).__name__} and must hold `key: value` lines")
    base = content.pop(EXTENDS, None)
    if base is not None and not isinstance(base, str):
        raise ValueError(f"{path}: {EXTENDS}={base!r} must be the name of a file beside it, such as common.yaml")
    settings = {} if base is None else read_settings(path.parent / base, (*above, path.resolve()))
    return settings | flat(content, str(path))


def flat(content: dict[Any, Any], where: str) -> Settings:
    """Settings of one file, the nested ones by their dotted names."""
    settings: Settings = {}
    for key, value in content.items():
        if key not in NESTED:
            settings[str(key)] = Setting(value, where)
        elif isinstance(value, dict):
            settings |= {f"{key}.{name}": Setting(entry, where) for name, entry in value.items()}
        elif value is not None:
            raise ValueError(f"{where}: {key}={value!r} must hold `key: value` lines")
    return settings


def nested(settings: Settings) -> dict[str, Any]:
    """The values, with the nested ones in dictionaries again."""
    values: dict[str, Any] = {}
    for name, setting in settings.items():
        key, dot, rest = name.partition(".")
        if dot and key in NESTED:
            values.setdefault(key, {})[rest] = setting.value
        else:
            values[name] = setting.value
    return values


def own_overrides(arguments: list[str]) -> tuple[Settings, list[str]]:
    """The overrides that argparse does not know, and the other arguments.

    `--config.d_model 256`, `--config.d_model=256` and `--config '{"d_model": 256}'`, and `--init_from null`, which
    takes a setting back.
    """
    where, settings, rest = "command line", Settings(), list[str]()
    waiting = list(reversed(arguments))
    while waiting:
        argument = waiting.pop()
        name, equals, text = argument.removeprefix("--").partition("=")
        if not equals:
            text = waiting[-1] if waiting else ""
        key, dot, entry = name.partition(".")
        if not argument.startswith("--") or (key not in NESTED and text != "null"):
            rest.append(argument)
            continue
        if waiting and not equals:
            waiting.pop()
        value = parse_yaml(text, f"{where}: --{name}")
        settings |= flat({key: {entry: value}} if dot else {name.replace("-", "_"): value}, where)
    return settings, rest


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be; `d_model` is found as `config.d_model`."""
    by_end: dict[str, str] = {}
    for full in known:
        by_end.setdefault(full.rpartition(".")[2], full)
    end = name.rpartition(".")[2].lstrip("-").replace("-", "_")
    found = difflib.get_close_matches(end, by_end, n=1, cutoff=0.75)
    return by_end[found[0]] if found else None


def _text(path: Path, above: tuple[Path, ...]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        beside = [other.name for other in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, beside, n=1)
        reason = getattr(error, "strerror", None) or error
        asked = f", which {above[-1].name} extends" if above else ""
        meant = f"; did you mean {path.parent / close[0]}?" if close else ""
        raise ValueError(f"{path}{asked}: cannot be read ({reason}){meant}") from error
