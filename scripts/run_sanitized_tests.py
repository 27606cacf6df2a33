"""Build the compiled part with address and undefined-behaviour sanitizers, and run its tests.

    python scripts/run_sanitized_tests.py [-k EXPRESSION]

For gcc on Linux. The package is copied to a temporary folder and built there; the installed one stays as it is. The
first read or write outside of a tensor, and the first undefined operation, ends the tests with a report.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "hf_capsule_mt"
LIBRARY = f"{PACKAGE}/_native.abi3.so"
SOURCE = f"{PACKAGE}/ops/csrc/module.c"
PLUGIN = """import hf_capsule_mt._native as native
assert native.__file__ == {library!r}, native.__file__
"""
SANITIZERS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# What calls compiled code with tensors of its own.
TESTS = (
    "tests/ops/test_routing_native.py",
    "tests/ops/test_routing_fused.py",
    "tests/ops/test_routing_dispatch.py",
    "tests/ops/test_routing_numerics.py",
    "tests/ops/test_guided_scores_fused.py",
    "tests/inference/test_int8_layers.py",
    "tests/inference/test_compiled_steps.py",
)
# In those files: by the name of the test, of its file or of a parameter.
COMPILED = "native or int8 or compiled_steps"


def flags_of_setup() -> list[str]:
    """The compiler flags in setup.py, which builds what is installed."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (flags,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLAGS"
    ]
    return [flag for flag in ast.literal_eval(flags) if not flag.startswith("-O")]


def build(folder: Path, compiler: str) -> None:
    """A copy of the package in `folder`, with a compiled part that watches itself."""
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    source, library = folder / SOURCE, folder / LIBRARY
    include = sysconfig.get_paths()["include"]
    command = [compiler, "-shared", "-fPIC", *flags_of_setup(), *SANITIZERS, "-DPy_LIMITED_API=0x030b0000"]
    subprocess.run([*command, f"-I{include}", str(source), "-o", str(library), "-lm", "-pthread"], check=True)


def runtime(compiler: str) -> str:
    """The libraries that must be there before anything else is loaded: the sanitizer's, and C++'s, whose exceptions
    PyTorch throws through it."""
    found = []
    for name in ("libasan.so", "libstdc++.so.6"):
        command = [compiler, f"-print-file-name={name}"]
        found.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        if not Path(found[-1]).is_absolute():
            raise ValueError(f"{compiler} has no {name}, which the sanitizers need: install gcc's")
    return " ".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="expression", default=COMPILED, help="run only tests that match")
    parser.add_argument("--compiler", default=os.environ.get("CC", "gcc"))
    arguments = parser.parse_args()
    if shutil.which(arguments.compiler) is None:
        print(f"error: {arguments.compiler}: no such compiler; install gcc", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            preload = runtime(arguments.compiler)
            build(folder, arguments.compiler)
        except (ValueError, subprocess.CalledProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        settings = {
            "LD_PRELOAD": preload,
            # Python and PyTorch never give back all of their memory; theirs is not what is tested.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONPATH": str(folder),
            "PYTHONMALLOC": "malloc",
            "OMP_NUM_THREADS": "1",
            "HF_CAPSULE_MT_TEST_ROUNDING": "1000",
        }
        # A library that does not load would only skip tests.
        (folder / "sanitized.py").write_text(PLUGIN.format(library=str(folder / LIBRARY)))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--capture=sys", "-p", "no:cacheprovider"]
        command += ["-p", "sanitized", "-k", arguments.expression, *(str(ROOT / test) for test in TESTS)]
        return subprocess.run(command, cwd=folder, env={**os.environ, **settings}).returncode


if __name__ == "__main__":
    sys.exit(main())
