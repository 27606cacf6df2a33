"""BLEU of sacreBLEU, as a module for `evaluate`."""

from typing import Any

from hf_capsule_mt.evaluation.metrics import base
from hf_capsule_mt.evaluation.scoring.metric import CorpusMetric
from hf_capsule_mt.evaluation.scoring.sacrebleu_metrics import SacrebleuMetric


class Bleu(base.CorpusMetricModule):
    """BLEU of sacreBLEU. Options of `compute`: `lowercase` and `tokenizer`."""

    description = "BLEU of sacreBLEU."

    def make_metric(self, lowercase: bool | None = None, tokenizer: str | None = None, **unknown: Any) -> CorpusMetric:
        base.check_options(unknown)
        return SacrebleuMetric("bleu", lowercase, tokenizer)
