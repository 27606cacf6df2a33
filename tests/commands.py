"""Scripts of this repository as programs of their own, without the seconds that importing PyTorch takes each time.

A server imports the large libraries once and forks a process for every call. A program that starts from nothing, as
`subprocess` does, is for tests of starting and ending: what is imported, `accelerate launch`, broken pipes.
"""

import gc
import multiprocessing
import os
import random
import runpy
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["hf_capsule_mt", "hf_capsule_mt.training", "hf_capsule_mt.evaluation"])

Finished = subprocess.CompletedProcess[str]


def run_script(
    script: str | Path, *arguments: str, folder: Path = ROOT, text: str = "", timeout: float = 600
) -> Finished:
    """Run `script`, a path from the root of the repository, in `folder` with `text` as its input."""
    (done,) = _run([str(ROOT / script), *arguments], folder, text, timeout, [{}])
    return done


def run_processes(script: str | Path, *arguments: str, count: int = 2, timeout: float = 600) -> list[Finished]:
    """Run `script` in processes that find each other, on CPUs, as `torchrun` does: when one fails the others end."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.SystemRandom().randrange(20_000, 60_000))}
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true"}
    places = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return _run([str(ROOT / script), *arguments], ROOT, "", timeout, places)


def _run(
    command: list[str], folder: Path, text: str, timeout: float, environments: list[dict[str, str]]
) -> list[Finished]:
    with tempfile.TemporaryDirectory() as made:
        started = []
        for number, environment in enumerate(environments):
            paths = [Path(made, f"{number}-{name}") for name in ("in", "out", "error")]
            paths[0].write_bytes(text.encode())
            given = (command, folder, paths, {**os.environ, **environment})
            process = PROCESSES.Process(target=_be_the_script, args=given)
            process.start()
            started.append((process, paths[1:]))
        if not _ended([process for process, _ in started], timeout):
            raise subprocess.TimeoutExpired(command, timeout)
        return [
            Finished(command, process.exitcode or 0, *(path.read_bytes().decode() for path in paths))
            for process, paths in started
        ]


def _ended(processes: list[BaseProcess], timeout: float) -> bool:
    """Wait for all of them; where one fails the others are told to end, then made to. False if they took too long."""
    end, failed = time.monotonic() + timeout, False
    while running := [process for process in processes if process.exitcode is None]:
        if not failed and any(process.exitcode for process in processes):
            end, failed = time.monotonic() + 30, True
            for process in running:
                process.terminate()
        if time.monotonic() >= end:
            for process in running:
                process.kill()
                process.join()
            return failed
        wait([process.sentinel for process in running], end - time.monotonic())
    return True


def _be_the_script(command: list[str], folder: Path, files: list[Path], environment: dict[str, str]) -> None:
    gc.freeze()  # what was imported is shared with the server as long as nobody looks through it
    for number, (file, mode) in enumerate(zip(files, ("rb", "wb", "wb"), strict=True)):
        with open(file, mode) as opened:
            os.dup2(opened.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # the server's is closed
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")
