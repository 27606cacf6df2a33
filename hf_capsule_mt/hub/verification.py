"""Does a checkpoint folder work where this package is not installed?"""

import json
import os
import subprocess
import sys
import tempfile
from math import isfinite
from pathlib import Path
from typing import Any

from transformers import AutoConfig

import hf_capsule_mt
from hf_capsule_mt.configuration.carried_code import TRANSLATION_TASK, CarriedCode
from hf_capsule_mt.hub import load_alone
from hf_capsule_mt.hub.remote_code import flat_files

# What a system or an interpreter runs, whatever the case of its letters; our own code is checked byte by byte.
PROGRAMS = (
    *(".so", ".pyd", ".dll", ".dylib", ".exe", ".pyc", ".pyo", ".pyx", ".pyw", ".sh", ".bash", ".bat", ".cmd"),
    *(".ps1", ".js", ".jar", ".zip", ".egg", ".whl"),
)
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
TOLERANCE = 1e-4


def verify(*folders: str | os.PathLike[str], python: str = sys.executable) -> None:
    """Raise a ValueError unless each folder gives the same outputs without this package as with it.

    Their code must be, byte for byte, what this version of the package exports; no other is ever run here. Then they
    are loaded in a new process in which this package cannot be imported and no code is cached, by model class
    and, where there is a tokenizer, by pipeline; logits, beams and translations are compared with those of this
    process. There each is saved again, and what was saved must load alone and give the same outputs too. `python` is
    the interpreter of that process.
    """
    paths = [Path(folder).resolve() for folder in folders]
    for path in paths:
        _check_files(path)
    expected = [load_alone.load_and_run(path)[1] for path in paths]
    with tempfile.TemporaryDirectory() as work:
        settings = {"HF_MODULES_CACHE": f"{work}/modules", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        # -P: files beside the script are no modules.
        command = [python, "-P", load_alone.__file__, work, *map(str, paths)]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, cwd=work)
        if done.returncode != 0:
            names = ", ".join(map(str, paths))
            raise ValueError(f"{names}: cannot be used without this package\n{done.stderr[-3000:]}")
        for number, path in enumerate(paths):
            for name, what in (
                ("alone", "differ without this package"),
                ("again", "differ when saved again without it"),
            ):
                found = json.loads(Path(work, f"{name}-{number}.json").read_text(encoding="utf-8"))
                compare(str(path), what, found, expected[number])


def _check_files(folder: Path) -> None:
    """That the code is there, complete, and our own; that nothing is pickled."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no checkpoint: config.json cannot be read ({error})") from error
    if not config.get("auto_map") or not config.get("custom_pipelines"):
        raise ValueError(f"{folder} does not hold its code; save the model with save_pretrained(…, export_code=True)")
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLED)
    if pickled:
        names = ", ".join(pickled)
        raise ValueError(f"{folder} holds {names}; reading a pickled file can run any code: leave it out")
    _refuse_programs(folder)
    _check_code(folder, config)


def _refuse_programs(folder: Path) -> None:
    """Raise a ValueError for a file that can be run and is no Python file, which `_check_code` compares."""
    for path in sorted(folder.rglob("*")):
        suffix = path.suffix.lower()
        if path.is_file() and (suffix in PROGRAMS or (suffix == ".py" and path.suffix != suffix)):
            name = path.relative_to(folder).as_posix()
            raise ValueError(f"{folder} holds {name}, a program that hf_capsule_mt does not export: leave it out")


def _check_code(folder: Path, written: dict[str, Any]) -> None:
    """That the code is what this version exports for this configuration, as config.json has `written` it."""
    again = "export the model again, or verify it with the version that exported it"
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)  # our own class
    if not isinstance(config, CarriedCode) or not config.own_auto_map():
        raise ValueError(f"{folder} holds a {type(config).__name__}, which is of no family of hf_capsule_mt")
    expected_entries = {"auto_map": config.own_auto_map(), "custom_pipelines": {"translation": TRANSLATION_TASK}}
    for name, entries in expected_entries.items():
        if written.get(name) != entries:
            raise ValueError(f"{folder}: {name} in config.json must be {entries}, as hf_capsule_mt writes it; {again}")
    tokenizer = folder / "tokenizer_config.json"
    if tokenizer.is_file() and "auto_map" in json.loads(tokenizer.read_text(encoding="utf-8")):
        raise ValueError(f"{tokenizer} names code of a tokenizer, which hf_capsule_mt does not export; leave it out")
    config.carry_code()
    expected = {name: text.encode() for name, text in flat_files(config).items()}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if name not in expected:
            raise ValueError(f"{folder} holds {name}, which hf_capsule_mt does not export: leave it out")
    for name, content in expected.items():
        path = folder / name
        if not path.is_file() or path.is_symlink() or path.read_bytes() != content:
            version = hf_capsule_mt.__version__
            raise ValueError(f"{path} is missing or not what hf_capsule_mt {version} exports: {again}")


def compare(name_of_model: str, how: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise a ValueError that says which of the outputs are not those expected."""
    for name, wanted in expected.items():
        if name in ("logits", "scores"):
            most = TOLERANCE * max([1.0, *map(abs, wanted)])
            same = isfinite(most) and all(abs(a - b) <= most for a, b in zip(found[name], wanted, strict=True))
        else:
            same = found[name] == wanted
        if not same:
            raise ValueError(f"{name_of_model}: {name} {how}")
