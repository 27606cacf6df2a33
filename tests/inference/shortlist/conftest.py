"""Settings shared by the tests of shortlists."""

import pytest
from family_cases import CAPS_NMT, Case
from small_translator import SOURCES, TARGETS, Translator

from hf_capsule_mt.data import marian_token_ids, train_tokenizer


@pytest.fixture(scope="module")
def translator() -> Translator:
    """An untrained CapsNMT whose sizes and special tokens are those of its tokenizer."""
    tokenizer = train_tokenizer([*SOURCES, *TARGETS], 300)
    fields = {"vocab_size": len(tokenizer), **marian_token_ids(tokenizer)}
    return Translator(Case(CAPS_NMT, "pooling").build(**fields), tokenizer)
