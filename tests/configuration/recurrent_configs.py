"""Small configurations of the recurrent families, and the one problem that a wrong value gives."""

from typing import Any

import pytest

from hf_capsule_mt.configuration.config_checks import problem

SMALL = {"vocab_size": 50, "pad_token_id": 49, "decoder_start_token_id": 49}


def assert_only_problem(config: Any, field: str, value: object, rule: str, fix: str, **others: object) -> None:
    """`field=value` is the only problem of the class `config`, and its line has this rule and fix."""
    with pytest.raises(ValueError) as error:
        config(**{**SMALL, **others, field: value})
    head, *lines = str(error.value).splitlines()
    assert head == f"{config.__name__} has 1 problem:"
    assert lines == [f"- {problem(field, value, rule, fix)}"]
