"""The code of a model as flat files, for a checkpoint folder that loads without this package.

Transformers copies such files beside each other and understands one form of import among them,
`from .<file> import Name`. So the files of `configuration`, `ops` and `modeling`, and `pipelines.py`, import each
other in one form too, `from hf_capsule_mt.<path>.<file> import Name`, and each of these lines is rewritten. A copy is
named after its path: `modeling/capsules/router.py` becomes `capsules_router.py`.
"""

import re
from pathlib import Path

import hf_capsule_mt
from hf_capsule_mt.checkpoint_contents import CODE_BEGINS
from hf_capsule_mt.configuration.carried_code import CarriedCode

PACKAGE = Path(__file__).parents[1]
SIBLING = re.compile(r"^([ \t]*)from hf_capsule_mt\.((?:configuration|ops|modeling)[.\w]+) import", re.MULTILINE)

HEADER = f"{CODE_BEGINS}{{version}} ({{file}}), Apache-2.0, for trust_remote_code.\n"

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
        needed = [f"{module.replace('.', '/')}.py" for _, module in SIBLING.findall(text)]
        wanted += [path for path in needed if path not in wanted]
        header = HEADER.format(version=hf_capsule_mt.__version__, file=file)
        footer = KEEP_PIPELINE if file.startswith("configuration/configuration_") else ""
        text = SIBLING.sub(lambda line: f"{line[1]}from .{flat_name(line[2].replace('.', '/'))} import", text)
        texts[flat_name(file)] = header + text + footer
    return texts


def flat_name(path: str) -> str:
    """`capsules_router.py` for `modeling/capsules/router.py`."""
    return "_".join(path.split("/")[1:]) or path
