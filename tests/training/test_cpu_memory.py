"""Memory that training keeps on a CPU: it stays with the process in the block, and goes back after it."""

import ctypes
from pathlib import Path

import pytest
import torch
from test_trainer import trainer
from training_run import SIZES
from transformers import MarianConfig, MarianMTModel, TrainerCallback

from hf_capsule_mt.training.cpu import memory as cpu_memory
from hf_capsule_mt.training.cpu.memory import keep_freed_memory

MEGABYTES = 64
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(cpu_memory._library() is None, reason="another C library, or its allocator is set")


def kept_after_free(megabytes: int = MEGABYTES) -> float:
    """Megabytes that the process keeps of a tensor of so many after it is freed."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    tensor = torch.ones(megabytes << 18)
    assert resident() - before > 0.9 * (megabytes << 20)
    del tensor
    return (resident() - before) / (1 << 20)


def test_freed_memory_stays_in_the_block_only() -> None:
    ctypes.CDLL(None).malloc_trim(0)  # what other tests left would serve the tensor
    assert kept_after_free() < 0.1 * MEGABYTES
    with keep_freed_memory(CPU):
        assert kept_after_free() > 0.9 * MEGABYTES
    assert kept_after_free() < 0.1 * MEGABYTES


def test_an_error_ends_the_block_too() -> None:
    with pytest.raises(KeyError), keep_freed_memory(CPU):
        raise KeyError
    assert kept_after_free() < 0.1 * MEGABYTES


@pytest.mark.parametrize("variable", ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_an_allocator_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "glibc.malloc.arena_max=2")
    with keep_freed_memory(CPU):
        assert kept_after_free() < 0.1 * MEGABYTES


def test_a_gpu_changes_nothing() -> None:
    with keep_freed_memory(torch.device("cuda")):
        assert kept_after_free() < 0.1 * MEGABYTES


def test_the_trainer_keeps_memory_while_it_trains(tmp_path: Path) -> None:
    seen: list[float] = []

    class Look(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            seen.append(kept_after_free())

    model = MarianMTModel(MarianConfig(**SIZES))
    run = trainer(model, tmp_path, max_steps=1, use_cpu=True)
    run.add_callback(Look())
    run.train()
    assert seen[0] > 0.9 * MEGABYTES
    assert kept_after_free() < 0.1 * MEGABYTES


def test_smaller_tensors_stay_afterwards_as_they_did_before() -> None:
    """Else each of them would be mapped anew for the rest of the process."""
    with keep_freed_memory(CPU):
        pass
    assert kept_after_free(16) > 0.9 * 16
