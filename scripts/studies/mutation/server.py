"""Runs test files of a copy of the repository, each in a fork of a process that has imported the large libraries.

    python server.py COPY MODULE...      # in the folder COPY, which is the first on PYTHONPATH

It reads jobs, one JSON object a line, and answers each with one line. A job names the test file, pytest's marker
expression, a limit in seconds, and whether to note which functions of the package are called.
"""

import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MEMORY = 8 << 30  # a fault that fills the memory must not stop other programs
REFUSED, NOTHING_CHOSEN = 4, 5  # pytest's exit codes for wrong options, and when the marker leaves no test
# They compare the text of sources with copies, so they notice every edit, also one that changes nothing.
TEXT_TESTS = (
    "tests/hub/test_shipped_checkpoints.py::test_a_shipped_checkpoint_carries_the_code_of_this_version",
    "tests/docs/test_pages.py::test_the_api_page_is_that_of_the_docstrings",
)
PATIENCE = 15  # seconds in which pytest may end its own processes after an interrupt


class Report:
    """A pytest plugin that remembers the first failure."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


class Calls:
    """The functions of the package that were called: a file and the line where the function begins."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.codes: set[Any] = set()

    def start(self) -> None:
        threading.settrace(self._note)
        sys.settrace(self._note)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(self.package):
            self.codes.add(frame.f_code)

    def places(self) -> list[tuple[str, int]]:
        sys.settrace(None)
        root = Path(self.package).parent
        return sorted({(os.path.relpath(code.co_filename, root), code.co_firstlineno) for code in self.codes})


def run_pytest(job: dict[str, Any], copy: Path, answer: Path) -> int:
    """In the forked process: run the tests of one file, and write what happened."""
    import pytest

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with open(answer.with_suffix(".log"), "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    report = Report()
    calls = Calls(str(copy / "hf_capsule_mt") + os.sep)
    if job["trace"]:
        sys.dont_write_bytecode = False  # the sources are unchanged
        calls.start()
    options = ["-x", "-q", "-m", job["marker"], "-p", "no:cacheprovider", f"--basetemp={answer.with_suffix('.tmp')}"]
    options += [f"--deselect={test}" for test in TEXT_TESTS]
    code = int(pytest.main([*options, job["test"]], plugins=[report]))
    answer.write_text(json.dumps({"code": code, "failed": report.failed, "calls": calls.places()}))
    return code


def wait_for(process: int, limit: float) -> int | None:
    """The status of a process that ended in time, else None."""
    end = time.monotonic() + limit
    handle = os.pidfd_open(process)
    try:
        select.select([handle], [], [], max(0.0, end - time.monotonic()))
        ended, status = os.waitpid(process, os.WNOHANG)
    finally:
        os.close(handle)
    return status if ended else None


def processor_seconds() -> float:
    """What the processes that ended have used so far, with the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(job: dict[str, Any], copy: Path, answer: Path) -> dict[str, Any]:
    """Run one job in a fork. The outcome is `passed`, `failed`, `timeout` or `crashed`."""
    answer.unlink(missing_ok=True)
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        try:
            run_pytest(job, copy, answer)
        finally:
            os._exit(0)  # exit handlers belong to the server
    before = processor_seconds()
    try:
        status = wait_for(process, job["limit"])
    except BaseException:  # Ctrl-C does not reach the fork, which has a session of its own
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        raise
    seconds = round(time.monotonic() - started, 2)
    if status is None:
        # As Ctrl-C does, which lets fixtures end the processes they started.
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT)
        if wait_for(process, PATIENCE) is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    shutil.rmtree(answer.with_suffix(".tmp"), ignore_errors=True)
    times = {"seconds": seconds, "processor_seconds": round(processor_seconds() - before, 2)}
    if status is None:
        return {"outcome": "timeout", "failed": job["test"], **times, "calls": []}
    if not answer.exists():
        return {"outcome": "crashed", "failed": job["test"], **times, "calls": []}
    said = json.loads(answer.read_text())
    if said["code"] == REFUSED:
        raise RuntimeError(answer.with_suffix(".log").read_text().strip().splitlines()[-1])
    outcome = "passed" if said["code"] in (0, NOTHING_CHOSEN) else "failed"
    return {"outcome": outcome, "failed": said["failed"] or job["test"], **times, "calls": said["calls"]}


def main() -> None:
    copy = Path(sys.argv[1]).resolve()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not look like an answer
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line), copy, copy / "answer.json")) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
