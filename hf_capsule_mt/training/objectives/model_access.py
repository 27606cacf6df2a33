"""What the objectives read of any translation model: its encoder's output, its end tokens, its limits.

Legend: `B` sentences, `R` rows of a batch of samples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers.utils import ModelOutput


def end_tokens(model: Any) -> list[int]:
    """The tokens that end a translation."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = model.config.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends or ())


def has_two_embeddings(model: Any) -> bool:
    """Whether source and target may have different vocabularies."""
    return not getattr(model.config, "share_encoder_decoder_embeddings", True)


def has_two_vocabularies(model: Any) -> bool:
    """Whether the numbers of source and target tokens differ."""
    sizes = model.config.vocab_size, getattr(model.config, "decoder_vocab_size", None)
    return has_two_embeddings(model) and sizes[1] not in (None, sizes[0])


def padding_token(model: Any) -> int:
    """The padding token; 0 where the model has none."""
    return int(model.config.pad_token_id or 0)


def impossible_word(model: Any) -> int | None:
    """The padding token, which no translation may contain; None where the model has none, or it ends translations."""
    padding = model.config.pad_token_id
    return None if padding is None or padding in end_tokens(model) else int(padding)


def most_positions(model: Any) -> int | None:
    """The longest target that the model can read; None for no limit."""
    return getattr(model.config, "max_position_embeddings", None)


def start_token(model: Any) -> int:
    """The token that the decoder reads first."""
    start = model.generation_config.decoder_start_token_id
    return int(model.config.decoder_start_token_id if start is None else start)


def encode(model: Any, source: dict[str, Tensor]) -> ModelOutput:
    """The encoder's output for `input_ids` and `attention_mask`."""
    return model.get_encoder()(**source, return_dict=True)


def repeated(encoded: ModelOutput, rows: Tensor) -> ModelOutput:
    """The encoder's output with these rows `[R]` of its batch, each as often as it is named.

    Of the fields only tensors with a row for each sentence are kept: those that a decoder reads.
    """
    count = len(encoded[0])
    tensors = {
        name: value.index_select(0, rows)
        for name, value in encoded.items()
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
    }
    return type(encoded)(**tensors)


@contextmanager
def decoder_without_dropout(model: Any) -> Iterator[None]:
    """In this block the decoder has no dropout, as when samples were drawn, and its gradients can be computed.

    Layers of PyTorch with recurrence stay as they are: on a GPU they have no gradients in evaluation mode.
    """
    kept = {id(module) for module in model.get_encoder().modules()}
    modes = [
        (module, module.training)
        for module in model.modules()
        if id(module) not in kept and not isinstance(module, nn.RNNBase)
    ]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
