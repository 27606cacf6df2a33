"""What the tests of the pipeline stand on: a saved model of every family, and one thread, in which these are fast."""

import interpreted_kernels  # noqa: F401
import pytest
import torch
from pipeline_models import saved_models


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return saved_models(tmp_path_factory)
