"""Settings shared by all tests: no network, and random examples that are the same in every run."""

import os

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
