"""What a checkpoint records of the objective, so that a resumed run notices what has changed."""

import dataclasses
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers.utils import logging

from hf_capsule_mt.training.checkpoints.files import running_state
from hf_capsule_mt.training.objectives.arguments import LIKELIHOOD, ObjectiveArguments
from hf_capsule_mt.training.rewards import RewardSettings

logger = logging.get_logger(__name__)

WITHOUT_EFFECT = ("workers", "timeout_seconds", "cache_folder")  # on the rewards
NAMES = {one.name for one in dataclasses.fields(ObjectiveArguments)} - {"reward_settings", "equal_reward_steps"}


def objective_settings(args: Any, given_reward: Any) -> dict[str, Any]:
    """The settings of the objective by name, for JSON. `given_reward` is a reward of the caller's, or None."""
    if getattr(args, "objective", LIKELIHOOD) == LIKELIHOOD:
        return {"objective": LIKELIHOOD}
    settings = {name: getattr(args, name) for name in sorted(NAMES)}
    if given_reward is not None:
        return settings | {"reward": given_reward.name}
    of_reward = dataclasses.asdict(RewardSettings.from_mapping(args.reward_settings))
    return settings | {f"reward_settings.{name}": of_reward[name] for name in of_reward if name not in WITHOUT_EFFECT}


def recorded_run(checkpoint: Path) -> dict[str, Any]:
    """The state that the main process saved, for all processes. The run may have another number of processes now."""
    shared = [running_state(checkpoint)]
    broadcast_object_list(shared)
    return shared[0]


def has_other_reward(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether the reward or its settings differ, so that the rewards of both runs cannot be compared."""
    names = [name for name in before if name in now and name.startswith("reward_settings.")]
    return any(before.get(name) != now.get(name) for name in ("reward", *names))


def warn_of_changes(checkpoint: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warn if the settings of the checkpoint and of this run differ."""
    names = [name for name in before if name in now and before[name] != now[name]]
    changed = [f"{name} was {before[name]!r} and is {now[name]!r}" for name in names]
    if not changed:
        return
    begins_anew = "; the state of the reward and the running mean of rewards begin anew"
    logger.warning(
        f"{checkpoint}: its run had another objective ({', '.join(changed)}): training goes on with the new one"
        + (begins_anew if "reward" in now and has_other_reward(before, now) else "")
    )
