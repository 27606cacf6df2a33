"""Configuration of Marian with past and future by guided dynamic routing (GDR)."""

from typing import ClassVar

from hf_capsule_mt.configuration.config_checks import Values
from hf_capsule_mt.configuration.configuration_capsule_aggregated_marian import CapsuleAggregatedMarianConfig
from hf_capsule_mt.configuration.past_future_options import (
    NO_PREDICTIONS,
    PAST_FUTURES,
    past_future_problems,
)


class GDRMarianConfig(CapsuleAggregatedMarianConfig):
    r"""
    Configuration of [`GDRMarianModel`]. Takes every field of [`CapsuleAggregatedMarianConfig`], with
    `layer_aggregation="none"` as the default, and the following.

    Args:
        past_future (`str`, defaults to `"guided_routing"`):
            How source words are told apart into translated and untranslated ones at every target step:
            `"guided_routing"` (section 3.1, GDR), a `"classifier"` of past, future and redundant (CLF, section 4.3),
            two `"attention"` modules (ATTN, section 4.3), or `"none"`: without past and future.
        past_capsules, future_capsules (`int`, defaults to 2):
            Capsules that stand for translated and for untranslated source content.
        redundant_capsules (`int`, defaults to 2):
            Capsules that take up what belongs to neither and go nowhere; 0 leaves them out. `"attention"` has none.
        capsule_dim (`int`, defaults to 256):
            Size of one capsule. The authors' released setting is 60, which gives the parameter count of Table 1.
        guided_routing_iterations (`int`, defaults to 3):
            Rounds of routing.
        bow_loss_weight, bca_loss_weight (`float`, defaults to 1.0):
            Weights of the bag-of-words and of the bilingual content agreement loss while training; 0 leaves the loss
            and its parameters out. All terms are means over target words. The paper's objective sums the translation
            loss over a sentence of T words instead, so its weight of 1 is about 1/T here: 0.05 with sentences of 20
            words. 1.0 is for training on top of a trained model; from scratch use 0.1, above all for the agreement
            loss. These losses teach past and future their words and may cost BLEU; for translations alone set both
            to 0.
        bow_reduction (`str`, defaults to `"mean"`):
            Whether the bag-of-words loss of one step is the `"mean"` over the words of the bag or the `"sum"`, as
            printed.

    Example:

    ```python
    >>> from hf_capsule_mt import GDRMarianConfig

    >>> config = GDRMarianConfig(d_model=512, capsule_dim=60, redundant_capsules=0)
    >>> config.past_future
    'guided_routing'
    ```"""

    model_type = "gdr_marian"
    warm_start_model_types: ClassVar[tuple[str, ...]] = ("marian", "capsule_aggregated_marian")
    keys_to_ignore_at_inference = ["past_key_values", *NO_PREDICTIONS]

    layer_aggregation: str = "none"
    past_future: str = "guided_routing"
    past_capsules: int = 2
    future_capsules: int = 2
    redundant_capsules: int = 2
    capsule_dim: int = 256
    guided_routing_iterations: int = 3
    bow_loss_weight: float | int = 1.0
    bca_loss_weight: float | int = 1.0
    bow_reduction: str = "mean"

    @classmethod
    def find_problems(cls, values: Values) -> list[str]:
        return super().find_problems(values) + past_future_problems(values, PAST_FUTURES)
