"""A table of the differences between systems of the comparison on Multi30k, beside those of the papers.

Only runs with the same seed are compared: a pair of systems without a common seed has no row.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from studies.multi30k_analyses import NONE, markdown

from hf_capsule_mt.evaluation.significance.seed_tests import SeedTest, seed_test

Runs = Mapping[int, Mapping[str, Any]]  # the results of one system by seed
WMT, NIST = "WMT14 En-De", "NIST Zh-En"


class Pair(NamedTuple):
    """Two systems, the BLEU that a paper reports for each, and its corpus."""

    system: str
    baseline: str
    paper: tuple[float, float] | None = None
    corpus: str = WMT

    @property
    def paper_difference(self) -> str:
        if self.paper is None:
            return NONE
        return f"{self.paper[0] - self.paper[1]:+.1f} ({self.corpus})"


# The tables that these come from: DLA 1, HEADS 2, GDR 1 and 2, CapsNMT 1.
PAIRS = (
    Pair("dla_linear", "marian", (27.73, 27.31)),
    Pair("dla_dynamic_combination", "marian", (28.33, 27.31)),
    Pair("dla_dynamic_routing", "marian", (28.22, 27.31)),
    Pair("dla_em", "marian", (28.81, 27.31)),
    Pair("dla_em", "marian_wide"),
    Pair("dla_em", "dla_em_1_iteration"),
    Pair("dla_em", "dla_em_dropout"),
    Pair("dla_em_replace", "marian", (28.81, 27.31)),
    Pair("dla_em_replace", "marian_on"),
    Pair("dla_em_replace", "dla_em_warm"),
    Pair("heads_em", "marian", (28.28, 27.31)),
    Pair("heads_em_all", "marian", (28.47, 27.31)),
    Pair("gdr_marian", "marian", (28.1, 27.1)),
    Pair("gdr_marian", "marian_on"),
    Pair("gdr_marian", "gdr_marian_no_losses", (45.65, 44.91), NIST),
    Pair("gdr_rnmt", "rnmt", (38.45, 36.61), NIST),
    Pair("gdr_rnmt_pfrnn", "rnmt", (37.85, 36.61), NIST),
    Pair("gdr_rnmt", "rnmt_on"),
    Pair("gdr_rnmt_pfrnn", "rnmt_on"),
    Pair("gdr_rnmt", "gdr_rnmt_pfrnn", (38.45, 37.85), NIST),
    Pair("caps_nmt", "marian", (25.7, 27.3)),
    Pair("caps_nmt", "caps_nmt_pooling", (25.7, 21.3)),
    Pair("caps_nmt_kd", "caps_nmt", (26.9, 25.7)),
    Pair("caps_nmt_wide", "caps_nmt"),
    Pair("caps_nmt_attended", "caps_nmt"),
    Pair("caps_nmt_attended", "caps_nmt_pooling_attended"),
    Pair("caps_nmt_rate", "caps_nmt"),
    Pair("caps_nmt_attention", "caps_nmt"),
)


def score(split: str, metric: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda results: float(results[split][metric])


def compare(system: Runs, baseline: Runs, value: Callable[[Mapping[str, Any]], float]) -> SeedTest:
    return seed_test(
        {seed: value(results) for seed, results in baseline.items()},
        {seed: value(results) for seed, results in system.items()},
    )


def difference_row(pair: Pair, systems: Mapping[str, Runs]) -> list[str]:
    system, baseline = systems[pair.system], systems[pair.baseline]
    bleu = compare(system, baseline, score("test", "bleu"))
    others = [compare(system, baseline, score(*key)) for key in (("test", "chrf"), ("validation", "bleu"))]
    half = bleu.interval
    return [
        f"`{pair.system}` − `{pair.baseline}`",
        pair.paper_difference,
        ", ".join(map(str, bleu.seeds)),
        f"{bleu.mean:+.2f}",
        NONE if half is None else f"{bleu.mean - half:+.1f} to {bleu.mean + half:+.1f}",
        *(f"{other.mean:+.2f}" for other in others),
    ]


def difference_table(systems: Mapping[str, Runs]) -> str:
    """The table as Markdown, or an empty text if no two systems have a common seed."""
    rows = [
        difference_row(pair, systems)
        for pair in PAIRS
        if {*systems.get(pair.system, {})} & {*systems.get(pair.baseline, {})}
    ]
    header = ["difference", "paper, BLEU", "seeds", "test BLEU", "95 % interval", "test chrF", "validation BLEU"]
    return markdown(header, rows, 3) if rows else ""
