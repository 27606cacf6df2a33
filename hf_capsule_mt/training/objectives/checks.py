"""What an objective over whole translations needs of the model and of the run."""

from typing import Any

from hf_capsule_mt.training.objectives.arguments import LIKELIHOOD


def objective_problems_with_model(args: Any, model: Any, has_own_loss: bool, is_sharded: bool) -> list[str]:
    """What is wrong with the objective for this model."""
    objective = getattr(args, "objective", LIKELIHOOD)
    if objective == LIKELIHOOD:
        return []
    problems = []
    if has_own_loss:
        problems.append(f"objective={objective!r}: compute_loss_func would take its place; leave one of them out")
    if is_sharded:
        problems.append(
            f"objective={objective!r}: samples need the whole model in each process, and FSDP or DeepSpeed shards it; "
            "train without sharding"
        )
    if not (getattr(model.config, "is_encoder_decoder", False) and hasattr(model, "get_encoder")):
        problems.append(
            f"objective={objective!r}: {type(model).__name__} is no encoder-decoder, whose encoder reads a sentence "
            'once for all samples; use a translation model, or objective="likelihood"'
        )
    if getattr(args, "world_size", 1) > 1 and is_reentrant(args):
        problems.append(
            f"objective={objective!r}: with several processes, activation checkpointing must not be reentrant, "
            "because the model runs several times in a step; leave use_reentrant out of "
            "activation_checkpointing_kwargs"
        )
    return problems


def is_reentrant(args: Any) -> bool:
    """Whether activation checkpointing uses PyTorch's older implementation. Transformers has two names for it."""
    return any(
        getattr(args, f"{name}_checkpointing", False)
        and (getattr(args, f"{name}_checkpointing_kwargs", None) or {}).get("use_reentrant", False)
        for name in ("activation", "gradient")
    )
