"""Does a checkpoint folder work where this package is not installed?"""

import json
import os
import subprocess
import sys
import tempfile
from math import isfinite
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_imports

from hf_capsule_mt.hub import load_alone

# What a checkpoint's code may need; with anything else Transformers refuses to load it where that is missing.
NEEDED = {"torch", "transformers"}
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
TOLERANCE = 1e-4


def verify(*folders: str | os.PathLike[str], python: str = sys.executable) -> None:
    """Raise a ValueError unless each folder gives the same outputs without this package as with it.

    They are loaded in a new process in which this package cannot be imported and no code is cached, by model class
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
    """That the code is there, complete, and needs nothing unusual; that nothing is pickled."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no checkpoint: config.json cannot be read ({error})") from error
    if not config.get("auto_map") or not config.get("custom_pipelines"):
        raise ValueError(f"{folder} does not hold its code; save the model with save_pretrained(…, export_code=True)")
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        names = ", ".join(pickled)
        raise ValueError(f"{folder} holds {names}; reading a pickled file can run any code: leave it out")
    for path in sorted(folder.glob("*.py")):
        other = set(get_imports(path)) - NEEDED - sys.stdlib_module_names
        if other:
            names = ", ".join(sorted(other))
            raise ValueError(f"{path} needs {names}; code in a checkpoint may need torch and transformers only")


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
