"""What work that several processes share, and that may be stopped at any time, needs of files and processes."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env

PATIENCE = timedelta(days=30)


def this_process(device: str | None) -> PartialState:
    """This process among those of `accelerate launch`; none gives up on another that is still at work."""
    cpu = device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=cpu, timeout=PATIENCE)


def close_process_group() -> None:
    """At the end of work that several processes share: closes the connections. Their threads, at work when the
    interpreter ends, can abort the process, and then a run that was finished counts as failed. A model wrapped for DDP
    holds them, so what is left of one is freed before."""
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def from_main(state: PartialState, make: Callable[[], Any]) -> Any:
    """In all processes what `make` returns in the main one. Its error is the main one's; the others end quietly."""
    found: list[Any] = [None, False]
    failed: Exception | None = None
    if state.is_main_process:
        try:
            found[0] = make()
        except Exception as error:  # whatever it is, the others must not wait for ever
            failed, found[1] = error, True
    broadcast_object_list(found)
    if failed is not None:
        raise failed
    if found[1]:
        raise SystemExit(1)
    return found[0]


@contextmanager
def main_first() -> Iterator[None]:
    """The main process goes first, and the others wait as long as that takes. Transformers' `main_process_first` ends
    a run in which it takes longer than `ddp_timeout`, half an hour, which should stay short: in training a process
    that lets the others wait so long is dead."""
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    group = dist.new_group(timeout=PATIENCE)
    dist.barrier(group)  # they connect now: for that none waits longer than usual
    if dist.get_rank() > 0:
        dist.barrier(group)
    try:
        yield
    finally:
        if dist.get_rank() == 0:
            dist.barrier(group)


@contextmanager
def replacing(path: Path, folder: Path) -> Iterator[TextIO]:
    """A file that takes the place of `path` when all of it is on the disk; until then it is in `folder`."""
    part = folder / f"{path.name}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8", newline="\n") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
