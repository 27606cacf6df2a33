"""The metrics as modules of the library `evaluate`. They load from this folder, without a network.

    from hf_capsule_mt.evaluation.metrics import load_metric

    load_metric("bleu").compute(predictions=translations, references=references)["score"]

`evaluate.load(str(metric_path("bleu")))` does the same. References are one text a translation, or a list of texts.
"""

from pathlib import Path
from typing import Any

METRIC_MODULES = ("bleu", "chrf", "chrf_plus_plus", "ter", "paper_bleu", "comet")


def metric_path(name: str) -> Path:
    """The file of a module in `METRIC_MODULES`, for `evaluate.load`."""
    if name not in METRIC_MODULES:
        raise ValueError(f"metric={name!r}: must be one of {', '.join(METRIC_MODULES)}")
    return Path(__file__).with_name(f"{name}.py")


def load_metric(name: str, **options: Any) -> Any:
    """The `evaluate.Metric` of a name in `METRIC_MODULES`; `options` go to `evaluate.load`."""
    import evaluate

    return evaluate.load(str(metric_path(name)), **options)
