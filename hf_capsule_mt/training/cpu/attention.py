"""The attention of training steps: on a CPU in bfloat16 by matrix products, see `modeling/cpu_attention.py`."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_capsule_mt.modeling.attention_implementation import attention_implementation
from hf_capsule_mt.modeling.cpu_attention import DEFAULT, LONGEST, NAME

logger = logging.get_logger(__name__)


class TrainingAttention:
    """Chooses the attention implementation of the training steps, forward and backward. Evaluation keeps the model's.

    `implementation` is its name, None for the model's. `reason` says why. A stock model whose user has named "sdpa"
    looks like one by default; `attn_implementation` of the arguments tells them apart.
    """

    def __init__(self, args: Any, model: nn.Module) -> None:
        self.implementation, self.reason = _choice(args, model)

    def log(self) -> None:
        if self.reason:
            logger.info(self.reason)

    def in_model(self, model: nn.Module) -> AbstractContextManager[None]:
        """In this block the model uses the chosen implementation."""
        if self.implementation is None:
            return nullcontext()
        return attention_implementation(model, self.implementation)


def _choice(args: Any, model: nn.Module) -> tuple[str | None, str]:
    named, parts = getattr(args, "attn_implementation", None), _parts(model)
    if named is not None:
        for part in parts:
            try:
                part.get_correct_attn_implementation(named)
            except (ValueError, ImportError) as error:
                raise ValueError(
                    f"attn_implementation={named!r}: {type(part).__name__} cannot use it ({error}); leave it out, or "
                    'name "eager"'
                ) from error
        return named, f"training steps use the attention {named!r}: attn_implementation names it"
    uses = {part.config._attn_implementation for part in parts}
    in_bfloat16 = getattr(args, "bf16", False) or any(part.dtype == torch.bfloat16 for part in parts)
    if getattr(args.device, "type", "") != "cpu" or not in_bfloat16 or uses.isdisjoint((DEFAULT, NAME)):
        return None, ""
    reason = (
        f"training steps use the attention {NAME!r}: matrix products, which on a CPU in bfloat16 are several times as "
        f"fast as the backward pass of PyTorch's kernel (up to {LONGEST} positions); to name another one: "
        "attn_implementation"
    )
    if NAME in uses:
        return None, reason
    if uses == {DEFAULT} and all(part._can_set_attn_implementation() for part in parts):
        return NAME, reason
    return None, ""


def _parts(model: nn.Module) -> list[PreTrainedModel]:
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]
