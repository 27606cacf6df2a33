"""The code of a model as flat files, for a checkpoint folder that loads without this package.

Transformers copies such files beside each other and understands one form of import among them,
`from .<file> import Name`. So the files of `configuration`, `ops` and `modeling`, and `pipelines.py`, import them in
one form too, `from hf_capsule_mt.<folder>.<file> import Name`, and each of these lines is rewritten.
"""

import re
from pathlib import Path

import hf_capsule_mt
from hf_capsule_mt.configuration.carried_code import CarriedCode

PACKAGE = Path(__file__).parents[1]
SIBLING = re.compile(r"^([ \t]*)from hf_capsule_mt\.(configuration|ops|modeling)\.(\w+) import", re.MULTILINE)

HEADER = "# Copied from hf_capsule_mt {version} ({file}), Apache-2.0, for trust_remote_code.\n"

# Where this package is missing, a model is saved again by Transformers, with the files that import lines name.
KEEP_PIPELINE = '''

def _saved_with():
    """Never called: its import line makes Transformers copy the pipeline along with this file."""
    from .pipelines import CapsuleTranslationPipeline

    return CapsuleTranslationPipeline
'''


def flat_files(config: CarriedCode) -> dict[str, str]:
    """Name and text of every file that the classes in the `auto_map` of `config` need, and of the pipeline's."""
    entries = {entry.partition(".")[0] for entry in config.auto_map.values()}
    wanted = ["pipelines.py", *(f"{entry.partition('_')[0]}/{entry}.py" for entry in sorted(entries))]
    texts: dict[str, str] = {}
    for file in wanted:  # grows on the way
        text = (PACKAGE / file).read_text(encoding="utf-8")
        needed = [f"{folder}/{name}.py" for _, folder, name in SIBLING.findall(text)]
        wanted += [path for path in needed if path not in wanted]
        header = HEADER.format(version=hf_capsule_mt.__version__, file=file)
        footer = KEEP_PIPELINE if file.startswith("configuration/configuration_") else ""
        texts[Path(file).name] = header + SIBLING.sub(r"\1from .\3 import", text) + footer
    return texts
