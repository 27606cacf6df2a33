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
            Weights of the bag-of-words and of the bilingual content agreement loss while training. 0 leaves the loss
            and its parameters out. 1.0 is the printed objective (section 3.3, GDR): the translation loss summed over
            a sentence plus the mean of each auxiliary loss over its steps. What is logged is divided by the number of
            target words.
        bow_reduction (`str`, defaults to `"sum"`):
            How the bag-of-words loss of one step treats the words of its bag: their `"sum"`, as printed, or their
            `"mean"`, as in the code that the authors published.
        bow_accuracy (`float`, *optional*):
            Measured at the end of training by a recipe: the share of the words said so far that are among the best
            guesses of the past, `r_OL^P` of section 4.3, GDR. The coverage warnings of [`explain`] stand on it.

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
    bow_reduction: str = "sum"
    bow_accuracy: float | int | None = None

    @classmethod
    def find_problems(cls, values: Values) -> list[str]:
        return super().find_problems(values) + past_future_problems(values, PAST_FUTURES)
