"""Clear errors for input that a model cannot translate.

Shapes are checked everywhere. Values are checked where reading them is cheap, on the CPU and on Apple's GPUs, whose
memory it shares. On other accelerators every step would wait for the device; CUDA's own embedding stops there.
"""

import torch
from torch import Tensor


def check_tokens(name: str, ids: Tensor | None, vocab_size: int) -> None:
    """Raise on an empty batch, an empty sequence or an id that the embedding has no row for."""
    if ids is None:
        return
    if ids.dim() != 2:
        raise ValueError(f"{name} has shape {list(ids.shape)}: must be [batch, tokens]")
    check_not_empty(name, ids)
    if not _readable(ids):
        return
    lowest, highest = (int(end) for end in torch.aminmax(ids))
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(
            f"{name} holds the token id {wrong}: must be 0 to {vocab_size - 1}; the tokenizer and the model do not "
            "belong together, or the embedding was not resized (resize_token_embeddings)"
        )


def _readable(tensor: Tensor) -> bool:
    """Whether the values can be looked at without waiting for a device or breaking a trace (type: no fake tensors)."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return type(tensor) is Tensor and tensor.device.type in ("cpu", "mps") and not traced


def check_not_empty(name: str, tensor: Tensor | None) -> None:
    """Raise on ids or embeddings of no sentence, or of sentences without a token."""
    if tensor is not None and 0 in tensor.shape[:2]:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}: an empty batch or sentence cannot be translated; "
            "leave it out, or let the tokenizer add its end token"
        )


def check_length(name: str, length: int, max_positions: int) -> None:
    """Raise on a sequence with more positions than the model has."""
    if length > max_positions:
        raise ValueError(
            f"{name} has {length} tokens, the model has {max_positions} positions (max_position_embeddings): "
            f"truncate (tokenizer(..., truncation=True, max_length={max_positions})) or split the text"
        )


def check_source_mask(mask: Tensor | None) -> None:
    """Raise on a source sentence in which every position is masked: there would be nothing to translate."""
    if mask is None or mask.dim() != 2 or not _readable(mask):
        return
    empty = (~mask.bool().any(dim=-1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"attention_mask is 0 everywhere in sentence {empty[0]} (of {len(mask)}): it has no token")


def check_labels(labels: Tensor, vocab_size: int) -> None:
    """Raise on labels that are neither token ids nor -100."""
    check_tokens(
        "labels", labels if labels.device.type != "cpu" else labels.masked_fill(labels == -100, 0), vocab_size
    )


def source_word_mask(attention_mask: Tensor | None) -> Tensor | None:
    """`[B, S]`, true for the real words of the source, from what attention is given."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)}: must be [batch, source length], "
            "1 for a word and 0 for padding"
        )
    return attention_mask.bool()


def target_word_mask(attention_mask: Tensor | None, batch: int, length: int, past: int | Tensor) -> Tensor | None:
    """`[B, T]`, true for the real ones of T words that go on after `past` others; the mask may leave these out."""
    if attention_mask is None:
        return None
    shape = tuple(attention_mask.shape)
    if isinstance(past, Tensor):  # of a static cache: where asking would wait for a device, the mask is believed
        past = int(past) if _readable(past) else max(0, shape[-1] - length)
    if shape not in ((batch, length), (batch, past + length)):
        raise ValueError(
            f"decoder_attention_mask has shape {list(shape)}: must be {[batch, past + length]}, to go with the "
            "decoder input and what came before it; 1 for a word and 0 for padding"
        )
    return attention_mask[:, -length:].bool()


def padding_mask(attention_mask: Tensor | None, states: Tensor) -> Tensor | None:
    """[`word_mask`], or None where it can be seen that no position is padding."""
    mask = word_mask(attention_mask, states)
    return None if mask is not None and _readable(mask) and mask.all() else mask


def word_mask(attention_mask: Tensor | None, states: Tensor) -> Tensor | None:
    """`[B, S]`, true for the real words of `states` `[B, S, …]`."""
    mask = source_word_mask(attention_mask)
    if mask is not None and mask.shape != states.shape[:2]:
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)}, the source {list(states.shape[:2])}: both must be the same"
        )
    return mask
