"""The table of differences pairs runs by seed, and names systems of the study only."""

from typing import Any

import pytest
from studies.multi30k_differences import PAIRS, difference_table
from studies.multi30k_study import ONE_SEED, SYSTEMS


def run(bleu: float) -> dict[str, Any]:
    return {"test": {"bleu": bleu, "chrf": bleu + 20}, "validation": {"bleu": bleu / 2}}


def test_only_common_seeds_are_compared() -> None:
    systems = {
        "marian": {1: run(40.0), 2: run(38.0), 3: run(39.0)},
        "gdr_marian": {2: run(39.0), 3: run(42.0), 4: run(99.0)},
        "caps_nmt": {1: run(25.0)},
        "marian_on": {5: run(50.0)},
    }
    rows = difference_table(systems).splitlines()[2:]
    assert rows == [
        "| `gdr_marian` − `marian` | +1.0 (WMT14 En-De) | 2, 3 | +2.00 | -10.7 to +14.7 | +2.00 | +1.00 |",
        "| `caps_nmt` − `marian` | -1.6 (WMT14 En-De) | 1 | -15.00 | – | -15.00 | -7.50 |",
    ], "Student's t for two seeds is 12.7 times the standard error of 1"


def test_there_is_no_table_without_common_seeds() -> None:
    assert difference_table({"marian": {1: run(40.0)}, "gdr_marian": {2: run(40.0)}}) == ""


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.system}-{pair.baseline}")
def test_each_pair_is_of_the_study(pair: Any) -> None:
    assert {pair.system, pair.baseline} <= {*SYSTEMS, *ONE_SEED}


def test_each_system_of_the_study_has_a_row_or_is_a_baseline() -> None:
    assert {*SYSTEMS, *ONE_SEED} == {name for pair in PAIRS for name in (pair.system, pair.baseline)}
