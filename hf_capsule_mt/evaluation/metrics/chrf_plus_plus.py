"""chrF++ of sacreBLEU, as a module for `evaluate`."""

from typing import Any

from hf_capsule_mt.evaluation.metrics import base
from hf_capsule_mt.evaluation.scoring.metric import CorpusMetric
from hf_capsule_mt.evaluation.scoring.sacrebleu_metrics import SacrebleuMetric


class ChrfPlusPlus(base.CorpusMetricModule):
    """chrF++ of sacreBLEU. Options of `compute`: `lowercase`."""

    description = "chrF++ of sacreBLEU."

    def make_metric(self, lowercase: bool | None = None, **unknown: Any) -> CorpusMetric:
        base.check_options(unknown)
        return SacrebleuMetric("chrf++", lowercase)
