"""The shared parts of the commands, for the scripts of this folder: `hf_capsule_mt/cli/command_line.py`.

The file is loaded by its path. Importing it from the package would import PyTorch too, and `--help` must be fast.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[1] / "hf_capsule_mt" / "cli" / "command_line.py"
_spec = spec_from_file_location("hf_capsule_mt_command_line", _SOURCE)
_parts = module_from_spec(_spec)
_spec.loader.exec_module(_parts)

CommandHelp = _parts.CommandHelp
INTERRUPTED = _parts.INTERRUPTED
at_least_one = _parts.at_least_one
finite_number = _parts.finite_number
run_command = _parts.run_command
usable_device = _parts.usable_device
