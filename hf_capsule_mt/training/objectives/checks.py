"""Checks whether a model and a run can train with an objective over whole translations."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_capsule_mt.training.objectives.arguments import LIKELIHOOD
from hf_capsule_mt.training.objectives.model_access import end_tokens, has_two_embeddings


def objective_problems_with_model(
    args: Any, model: Any, has_own_loss: bool, is_sharded: bool, tokenizer: Any = None
) -> list[str]:
    """The problems of the objective with this model and its tokenizer."""
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
            f"objective={objective!r}: {type(model).__name__} is not an encoder-decoder, whose encoder reads each "
            'sentence once for all samples; use a translation model, or objective="likelihood"'
        )
    elif not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        problems.append(
            f"objective={objective!r}: {type(model).__name__} has no method prepare_decoder_input_ids_from_labels, "
            'which makes the input of the decoder; use another model, or objective="likelihood"'
        )
    if getattr(args, "world_size", 1) > 1 and is_reentrant(args):
        problems.append(
            f"objective={objective!r}: with several processes, activation checkpointing must not be reentrant, "
            "because the model runs several times in a step; leave use_reentrant out of "
            "activation_checkpointing_kwargs"
        )
    if not problems and isinstance(tokenizer, PreTrainedTokenizerBase) and has_two_embeddings(model):
        end, ends = tokenizer.eos_token_id, end_tokens(model)
        if end is not None and end not in ends:
            problems.append(
                f"objective={objective!r}: the tokenizer ends sentences with token {end}, and the model ends "
                f"translations with {', '.join(map(str, ends))}. Its vocabularies are separate, and Transformers "
                f"would end translations with {end} too; give the trainer the target's tokenizer as processing_class"
            )
    return problems


def is_reentrant(args: Any) -> bool:
    """Whether activation checkpointing uses PyTorch's older implementation. Transformers has two names for it."""
    return any(
        getattr(args, f"{name}_checkpointing", False)
        and (getattr(args, f"{name}_checkpointing_kwargs", None) or {}).get("use_reentrant", False)
        for name in ("activation", "gradient")
    )
