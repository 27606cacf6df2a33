"""What a process of `commands.py` does: all that it imports before it becomes the script."""

import gc
import multiprocessing
import os
import runpy
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def be_the_script(command: list[str], folder: Path, files: list[Path], environment: dict[str, str]) -> None:
    gc.freeze()  # what was imported is shared with the server as long as nobody looks through it
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # that of the program, not of this server
    for number, (file, mode) in enumerate(zip(files, ("rb", "ab", "ab"), strict=True)):
        with open(file, mode) as opened:
            os.dup2(opened.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # multiprocessing closes the one there was
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = command
    ours = [path for path in sys.path if not path or TESTS in (Path(path), *Path(path).parents)]
    sys.path[:] = [str(Path(command[0]).parent), *(path for path in sys.path if path not in ours)]
    sys.modules["numpy"].random.seed()
    runpy.run_path(command[0], run_name="__main__")
