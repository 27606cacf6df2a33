"""Breaks every rule that CapsNMT's configuration and the RNMT's share, and builds every allowed value."""

import itertools
import math

import pytest
from recurrent_configs import assert_only_problem

from hf_capsule_mt import CapsNMTConfig, GDRRNMTConfig
from hf_capsule_mt.configuration import configuration_caps_nmt, configuration_gdr_rnmt
from hf_capsule_mt.configuration.recurrent_options import FLAGS

every_config = pytest.mark.parametrize("config", [CapsNMTConfig, GDRRNMTConfig])
ALWAYS_ONE = [
    *((CapsNMTConfig, *rule) for rule in configuration_caps_nmt.ALWAYS_ONE.items()),
    *((GDRRNMTConfig, *rule) for rule in configuration_gdr_rnmt.ALWAYS_ONE.items()),
]
PROBABILITIES = [
    (CapsNMTConfig, "dropout"),
    *((GDRRNMTConfig, field) for field in configuration_gdr_rnmt.PROBABILITIES),
]


@pytest.mark.parametrize("value", [0, 2, 1.0, True, None])
@pytest.mark.parametrize(("config", "field", "reason"), ALWAYS_ONE)
def test_fields_that_are_always_one(config: type, field: str, reason: str, value: object) -> None:
    assert_only_problem(config, field, value, f"must be 1: {reason}", "leave it out")


@every_config
@pytest.mark.parametrize("value", [False, 1, None])
def test_is_encoder_decoder_is_always_true(config: type, value: object) -> None:
    assert_only_problem(config, "is_encoder_decoder", value, "must be True: this family translates", "leave it out")


@pytest.mark.parametrize("value", [1.0, -0.1, math.nan, "0.1"])
@pytest.mark.parametrize(("config", "field"), PROBABILITIES)
def test_probabilities(config: type, field: str, value: object) -> None:
    rule = "must be a probability, at least 0 and below 1"
    assert_only_problem(config, field, value, rule, "use a number such as 0.1")
    assert getattr(config(**{field: 0}), field) == 0


@every_config
@pytest.mark.parametrize(("field", "value"), list(itertools.product(FLAGS, [1, "true", None])))
def test_flags(config: type, field: str, value: object) -> None:
    assert_only_problem(config, field, value, "must be True or False", "use True or False")


@every_config
@pytest.mark.parametrize("value", [-0.1, 1, "0.02", None])
def test_init_std(config: type, value: object) -> None:
    assert_only_problem(config, "init_std", value, "must be a float of at least 0", "use 0.02")
