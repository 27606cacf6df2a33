"""Settings shared by the tests of shortlists."""

import interpreted_kernels  # noqa: F401
import pytest
from small_translator import Translator, make_translator


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make_translator()
