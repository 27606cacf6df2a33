"""Runs a command of `capsule-mt` for the files of this folder, also where the program is not installed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_PROGRAM = Path(__file__).resolve().parents[1] / "capsule_mt_command.py"


def run(command: str) -> int:
    """Run the command with the arguments of this program, and return its exit code."""
    spec = spec_from_file_location("capsule_mt_command", _PROGRAM)
    assert spec is not None and spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    return int(program.main([command, *sys.argv[1:]]))
