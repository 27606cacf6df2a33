"""Settings shared by the tests of inference."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed():
    """Every test starts from the same state of the random number generator."""
    torch.manual_seed(20240607)
    torch.set_num_threads(1)
