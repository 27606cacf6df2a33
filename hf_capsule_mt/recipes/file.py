"""Recipe files: YAML that may build on another file, read into settings that remember where they were written."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hf_capsule_mt.recipes.strict_yaml import MOST_CHARACTERS, parse_yaml

SHIPPED = Path(__file__).parent
EXTENDS = "extends"
RECIPE_ENDINGS = (".yaml", ".yml")
LONGEST_CHAIN = 10
# Keys whose value is a mapping. Its entries are settings of their own, `config.d_model`, in files and in overrides.
NESTED = ("config", "cleaning")


class Setting(NamedTuple):
    """A value and the file, or the command line, that it stands in.

    `own` is False for what another file holds, which `extends` names: errors do not repeat it, since that file may be
    no recipe, but somebody's secrets. Recipes of the package have none.
    """

    value: Any
    where: str
    own: bool = True

    @property
    def shown(self) -> str:
        """The value as errors show it."""
        return short(self.value) if self.own else f"a value of type {type(self.value).__name__}"


Settings = dict[str, Setting]


def recipe_path(name: str) -> Path:
    """The file of a recipe: the one of this name, or else the shipped one, such as `synthetic/dla_em`."""
    path = Path(name)
    shipped = SHIPPED / (name if path.suffix in RECIPE_ENDINGS else f"{name}.yaml")
    return shipped if not path.exists() and name in (*shipped_names(), *shipped_names(".yaml")) else path


def shipped_names(ending: str = "") -> list[str]:
    """The names of the recipes that come with the package."""
    names = (path.relative_to(SHIPPED).as_posix() for path in SHIPPED.glob("*/*.yaml"))
    return sorted(name.removesuffix(".yaml") + ending for name in names)


def read_settings(path: str | Path, above: tuple[Path, ...] = ()) -> Settings:
    """The settings of a recipe and of the file that it extends, its own winning; nested ones as `config.d_model`."""
    path = Path(path)
    content = parse_yaml(_text(path, above), str(path))
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds {type(content).__name__} and must hold `key: value` lines")
    base = content.pop(EXTENDS, None)
    own = flat(content, str(path), own=not above or SHIPPED in path.resolve().parents)
    if base is None:
        return own
    above = (*above, path.resolve())
    return read_settings(_extended(path, base, above), above) | own


def _extended(path: Path, base: Any, above: tuple[Path, ...]) -> Path:
    """The recipe file that `path` extends. Other files are not opened, so that no error can tell what they hold."""
    if not isinstance(base, str) or "\0" in base:
        raise ValueError(f"{path}: {EXTENDS}={short(base)} must be the name of a file beside it, such as common.yaml")
    other = path.parent / base
    if any(name.suffix.lower() not in RECIPE_ENDINGS for name in (other, other.resolve())):
        raise ValueError(f"{path}: {EXTENDS}={short(base)} must be a recipe, which ends in .yaml or .yml")
    if other.resolve() in above:
        raise ValueError(f"{other}: extends itself, by way of {above[-1].name}")
    if len(above) == LONGEST_CHAIN:
        raise ValueError(
            f"{path}: is the last of {LONGEST_CHAIN} recipes that extend one another, and extends another"
        )
    return other


def hide_foreign(message: str, settings: Settings) -> str:
    """The message of a library without the values of files that `extends` names."""
    waiting = [setting.value for setting in settings.values() if not setting.own]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif value is not None and not isinstance(value, bool) and len(str(value)) > 2:
            message = message.replace(str(value), "…")
    return message


def flat(content: dict[Any, Any], where: str, own: bool = True) -> Settings:
    """Settings of one file, the nested ones by their dotted names; a setting that comes twice is an error."""
    settings: Settings = {}
    for key, value in content.items():
        if key not in NESTED:
            entries = {str(key): value}
        elif isinstance(value, dict):
            entries = {f"{key}.{name}": entry for name, entry in value.items()}
        elif value is None:
            entries = {}
        else:
            raise ValueError(f"{where}: {key}={Setting(value, where, own).shown} must hold `key: value` lines")
        for name, entry in entries.items():
            setting = Setting(entry, where, own)
            if name in settings:
                inner = name.partition(".")[2]
                values = f", as {settings[name].shown} and {setting.shown}" if own else ""
                raise ValueError(
                    f"{where}: {name} comes twice{values}; keep either {name} or {inner} under "
                    f"{name.partition('.')[0]}"
                )
            settings[name] = setting
    return settings


def short(value: Any) -> str:
    """A value as an error shows it, not all of a long one."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} …"


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
    takes a setting back. A setting with two values, one by its dotted name and one in a mapping, is an error.
    """
    where, settings, rest = "command line", Settings(), list[str]()
    forms: dict[str, bool] = {}  # whether a setting was given by its dotted name
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
        more = flat({key: {entry: value}} if dot else {name.replace("-", "_"): value}, where)
        for twice in settings.keys() & more.keys():  # of one form the last wins, as for every argument
            if forms[twice] != bool(dot) and settings[twice].value != more[twice].value:
                raise ValueError(
                    f"{where}: {twice} comes twice, as {settings[twice].shown} and {more[twice].shown}; give it once"
                )
        settings |= more
        forms |= dict.fromkeys(more, bool(dot))
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
        with open(path, encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:  # the latter of bytes that are no UTF-8, and of a NUL in the name
        near = [str(other) for other in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        close = difflib.get_close_matches(str(path), near if above else [*near, *shipped_names()], n=1)
        reason = getattr(error, "strerror", None) or error
        asked = f", which {above[-1].name} extends" if above else ""
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{path}{asked}: cannot be read ({reason}){meant}") from error
