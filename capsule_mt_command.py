"""The program `capsule-mt`, see `hf_capsule_mt/cli/program.py`.

Importing `hf_capsule_mt` imports PyTorch, which takes seconds, and `--help` must be fast. So this file creates the
module of the package without running its `__init__.py`. A command runs it when its work begins (`import_package` in
`hf_capsule_mt/cli/command_line.py`). For this, the file must be outside of the package.
"""

import sys
from importlib.util import find_spec, module_from_spec

PACKAGE = "hf_capsule_mt"


def main(argv: list[str] | None = None) -> int:
    """Run a command, such as `["train", "synthetic/dla_em"]`, and return its exit code."""
    if PACKAGE not in sys.modules:
        spec = find_spec(PACKAGE)
        if spec is None:
            raise ModuleNotFoundError(f"{PACKAGE} is not installed: run pip install {PACKAGE}")
        sys.modules[PACKAGE] = module_from_spec(spec)
    from hf_capsule_mt.cli.program import main as program

    return program(argv)


if __name__ == "__main__":
    sys.exit(main())
