"""Scripts of this repository as programs of their own, without the seconds that importing PyTorch takes each time.

A server imports the large libraries once, not this package, and forks a process for every call. What forks of one
server share and programs do not: the seed of hashes, and what the libraries read of the environment when they were
imported. They end without what waits for the interpreter's end (`atexit`). A program that starts from nothing, as
`subprocess` does, is for tests of starting and ending: what is imported, `accelerate launch`, broken pipes.
"""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from script_process import be_the_script

ROOT = Path(__file__).parents[1]
IMPORTED = ["transformers.models.marian.modeling_marian", "transformers.trainer_seq2seq", "transformers.pipelines"]
IMPORTED += ["accelerate", "datasets", "sacrebleu", "matplotlib.figure"]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(IMPORTED)
HASH_SEED = "4242"  # words hash differently there than here


def _start_server() -> None:
    """Before any test changes the environment."""
    here = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = HASH_SEED
    forkserver.ensure_running()
    if here is None:
        del os.environ["PYTHONHASHSEED"]
    else:
        os.environ["PYTHONHASHSEED"] = here


_start_server()

Finished = subprocess.CompletedProcess[str]


def run_script(
    script: str | Path, *arguments: str, folder: Path = ROOT, text: str = "", timeout: float = 600
) -> Finished:
    """Run `script`, a path from the root of the repository, in `folder` with `text` as its input."""
    (done,) = _run([str(ROOT / script), *arguments], folder, text, timeout, [{}])
    return done


def start_script(script: str | Path, *arguments: str, log: Path) -> BaseProcess:
    """Run `script` without waiting for it, as the leader of a group of processes; `log` gets all that it says."""
    given = ([str(ROOT / script), *arguments], ROOT, [Path(os.devnull), log, log], dict(os.environ))
    process = PROCESSES.Process(target=be_the_script, args=given)
    process.start()
    return process


def run_processes(
    script: str | Path,
    *arguments: str,
    count: int = 2,
    folder: Path = ROOT,
    timeout: float = 600,
    environment: dict[str, str] | None = None,
) -> list[Finished]:
    """Run `script` in processes that find each other, on CPUs, as `torchrun` does: when one fails the others end.

    `environment` is what a launcher has added to that of its processes.
    """
    common = {"ACCELERATE_USE_CPU": "true", **(environment or {})}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    places = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return _run([str(ROOT / script), *arguments], folder, "", timeout, places)


def free_port() -> str:
    """A port that nothing listens on, below 32768: the system gives the ports above to connections by itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return str(port)


def _run(
    command: list[str], folder: Path, text: str, timeout: float, environments: list[dict[str, str]]
) -> list[Finished]:
    started: list[BaseProcess] = []
    with tempfile.TemporaryDirectory() as made:
        names = ("in", "out", "error")
        files = [[Path(made, f"{number}-{name}") for name in names] for number in range(len(environments))]
        try:
            for environment, paths in zip(environments, files, strict=True):
                for path, content in zip(paths, (text, "", ""), strict=True):
                    path.write_bytes(content.encode())
                given = (command, folder, paths, {**os.environ, **environment})
                started.append(PROCESSES.Process(target=be_the_script, args=given))
                started[-1].start()
            in_time = _ended(started, timeout)
        finally:
            for process in started:
                _kill(process)
        texts = [[path.read_bytes().decode() for path in paths[1:]] for paths in files]
    if not in_time:
        said = "\n".join(error[-2000:] for _, error in texts)
        raise AssertionError(f"{command} did not end in {timeout} seconds; it said\n{said}")
    return [Finished(command, process.exitcode or 0, *output) for process, output in zip(started, texts, strict=True)]


def _ended(processes: list[BaseProcess], timeout: float) -> bool:
    """Wait for all of them, and where one fails, for the others to end when they are told to."""
    end, failed = time.monotonic() + timeout, False
    while running := [process for process in processes if process.exitcode is None]:
        if not failed and any(process.exitcode for process in processes):
            failed = True
            for process in running:
                process.terminate()
        if (left := end - time.monotonic()) <= 0:
            return False
        wait([process.sentinel for process in running], left)
    return True


def _kill(process: BaseProcess) -> None:
    """And what it has started, if it has not ended."""
    if process.pid is not None and process.exitcode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
