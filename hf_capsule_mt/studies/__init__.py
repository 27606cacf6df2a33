"""Small trainings on the synthetic pair, and measurements of the trained models."""

from hf_capsule_mt.studies.past_future_report import PastFutureReport, past_future_report
from hf_capsule_mt.studies.routing_report import routing_report
from hf_capsule_mt.studies.small_recipe import LossCurve, SmallTask, small_config, small_task, train_small

__all__ = [
    "LossCurve",
    "PastFutureReport",
    "SmallTask",
    "past_future_report",
    "routing_report",
    "small_config",
    "small_task",
    "train_small",
]
