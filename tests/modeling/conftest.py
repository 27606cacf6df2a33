"""Settings shared by the model tests."""

import pytest
import torch

SEED = 20240607


@pytest.fixture(autouse=True)
def fixed_seed():
    """Every test starts from the same state of the random number generator."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
