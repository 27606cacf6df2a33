"""Settings shared by all tests: no network; Triton's interpreter where there is no GPU; random examples that are the
same in every run; the long tests first, so that no process waits for them at the end."""

import gc
import os
from collections.abc import Iterator

import pytest
from chromium import Tab, chromium_tab

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from hypothesis import HealthCheck, settings

# `derandomize` draws the same examples each time; `print_blob` prints what replays a failing one.
settings.register_profile(
    "repeatable",
    derandomize=True,
    print_blob=True,
    deadline=None,
    database=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """pytest-xdist's processes that run tests import PyTorch; the one that waits for them need not."""
    if not getattr(config.option, "numprocesses", None):
        import interpreted_kernels  # noqa: F401


gc.disable()  # until all tests are there, see pytest_collection_finish


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Processes are killed here, the power is not cut: what is written needs not reach the disk, which takes seconds
    where much else is to be written. Of a checkpoint `test_resumable.py` sees that it would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_workers_of_data() -> Iterator[None]:
    """PyTorch waits this long for a worker of a data loader that does not end. One that the garbage collector should
    end does not hear of it."""
    from torch.utils.data import _utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # seconds; PyTorch's own value is 5
        yield


@pytest.fixture(scope="module", autouse=True)
def no_garbage_of_earlier_files() -> None:
    """Objects of earlier files stay to the end. Each training collects garbage, and then skips these objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    """A tab that follows frames, for the tests of one file."""
    with chromium_tab() as tab:
        tab.watch_frames()
        yield tab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that train for minutes go first."""
    items.sort(key=lambda item: item.get_closest_marker("system") is None)


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: looking through it for garbage takes a tenth of the time."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
