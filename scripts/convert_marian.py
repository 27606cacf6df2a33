"""Convert a Marian checkpoint, such as opus-mt, to one of this package's Marian families, for further training.

python scripts/convert_marian.py Helsinki-NLP/opus-mt-en-de --family gdr_marian --output runs/gdr
python scripts/convert_marian.py path/to/marian --family capsule_aggregated_marian --output runs/capsules \\
    --set layer_aggregation=dynamic_routing layer_num_capsules=64

The command checks that the new model gives the logits and beams of the checkpoint. Settings that change the outputs,
such as aggregation_output=replace, need --other-outputs.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from command_line import run_command

from hf_capsule_mt.hub import MARIAN_FAMILIES, convert_marian


def setting(text: str) -> tuple[str, Any]:
    """`name=value`. The value is read as JSON, or as a string if it is not JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a folder or a Hub id, with safetensors weights")
    parser.add_argument(
        "--revision", help="branch, tag or commit on the Hub, refs/pr/N for pull request N; default: main"
    )
    parser.add_argument("--family", choices=sorted(MARIAN_FAMILIES), required=True)
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint in the output folder")
    parser.add_argument(
        "--set", type=setting, nargs="+", default=[], help="fields of the new configuration", dest="settings"
    )
    parser.add_argument("--other-outputs", action="store_true", help="allow outputs that differ from the checkpoint's")
    parser.add_argument("--export-code", action="store_true", help="add the code, for users without this package")
    arguments = parser.parse_args()
    same = not arguments.other_outputs
    convert_marian(
        arguments.checkpoint,
        arguments.output,
        arguments.family,
        revision=arguments.revision,
        same_outputs=same,
        export_code=arguments.export_code,
        overwrite=arguments.overwrite,
        **dict(arguments.settings),
    )
    print(f"{arguments.output}: {arguments.family}" + (", with the outputs of the checkpoint" if same else ""))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
