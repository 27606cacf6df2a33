"""The mixin of rewards that do not learn."""

from typing import Any

from hf_capsule_mt.training.rewards.scorer_pool import ScorerPool


class FixedReward:
    """Mixin: a reward without state."""

    def after_step(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        """There are no worker processes."""


class PooledReward(FixedReward):
    """Mixin: a reward without state, whose `pool` scores."""

    pool: ScorerPool

    def close(self) -> None:
        self.pool.close()
