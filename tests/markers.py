"""Parameters of tests that `make test` leaves out."""

from typing import Any

import pytest


def exhaustive(*values: Any) -> Any:
    """A set of values for `parametrize` that only `make test-all` runs, since the other sets find the same faults."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)
