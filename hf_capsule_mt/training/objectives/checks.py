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
    return problems
