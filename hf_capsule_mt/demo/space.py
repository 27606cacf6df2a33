"""The page as a folder for a Space of the Hugging Face Hub: `app.py`, `requirements.txt` and a card."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import hf_capsule_mt
from hf_capsule_mt.checkpoint_names import HUB_NAME
from hf_capsule_mt.outputs import new_folder

GRADIO = "6.31.0"  # the version of constraints.txt
PYTHON = "3.11"
FILES = ("app.py", "requirements.txt", "README.md")
APP = '''"""See routing: the demo of hf_capsule_mt, for {names}."""

from hf_capsule_mt.demo.app import build_app, start
from hf_capsule_mt.demo.models import load_models
from hf_capsule_mt.demo.page import Page

MODELS = {models}

if __name__ == "__main__":
    start(build_app(Page(load_models(MODELS))), host="0.0.0.0", port=7860)
'''
REQUIREMENTS = """{package}
sentencepiece
"""
CARD = """---
title: {title}
emoji: 💊
colorFrom: blue
colorTo: yellow
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
models: {models}
license: apache-2.0
short_description: Capsule-network translation, and what it routes where
---

# See routing

Type a sentence. The page shows its translation, and what capsule networks decided word by word: past and future of the
source, warnings for words that were probably left out, capsules, layers and heads. The models are {names}.

The page stores nothing that visitors type, and sends it to nobody. It is `capsule-mt demo` of the package
`hf_capsule_mt`; `capsule-mt demo {first}` shows it on your own machine.
"""


def write_space(
    folder: str | PathLike[str],
    models: str | Sequence[str],
    package: str | None = None,
    title: str = "See routing",
    overwrite: bool = False,
) -> list[Path]:
    """Writes the files of a Space to a new folder, and returns them.

    `hf upload me/space FOLDER . --repo-type space` pushes the folder.

    Args:
        folder: the folder. With `overwrite` it may exist, if it holds only the files of a Space.
        models: the names on the Hub of one or several models, such as `me/model`.
        package: what `pip` installs; by default this version of the package with the extra `demo`. Give an address
            if this version is on no package index: `hf_capsule_mt[demo] @ git+https://…`.
        title: the title of the Space.
    """
    names = [models] if isinstance(models, str) else list(models)
    if not names:
        raise ValueError("models is empty: name at least one model on the Hub, such as me/model")
    for name in names:
        if not HUB_NAME.fullmatch(name) or "/" not in name or name.startswith((".", "/")):
            raise ValueError(
                f"models: {name!r} is not a name on the Hub, and a Space cannot read local folders: push the "
                "model, and name it as owner/model"
            )
    package = package or f"hf_capsule_mt[demo]=={hf_capsule_mt.__version__}"
    if any(not text.strip() or not text.isprintable() for text in (package, title)):
        raise ValueError("package and title: must be one line of text")
    listed = ", ".join(names)
    contents = {
        "app.py": APP.format(names=listed, models=json.dumps(names)),
        "requirements.txt": REQUIREMENTS.format(package=package),
        "README.md": CARD.format(
            title=json.dumps(title, ensure_ascii=False),
            gradio=GRADIO,
            python=PYTHON,
            models=json.dumps(names),
            names=listed,
            first=names[0],
        ),
    }
    with new_folder(folder, [], overwrite, belongs=lambda path: path.name in FILES) as made:
        for name, text in contents.items():
            (made / name).write_text(text, encoding="utf-8")
    return [Path(folder) / name for name in FILES]
