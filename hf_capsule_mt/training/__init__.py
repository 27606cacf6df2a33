"""Training. So far the small recipe on the synthetic pair, with the stock Seq2SeqTrainer."""

from hf_capsule_mt.training.small_recipe import LossCurve, SmallTask, small_config, small_task, train_small

__all__ = ["LossCurve", "SmallTask", "small_config", "small_task", "train_small"]
