"""What FSDP needs to shard an encoder-decoder with tied embeddings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def embeddings_in_the_root_unit(model: Any, is_fsdp: bool) -> Iterator[None]:
    """In this block accelerate sees no input or output embeddings; nothing without FSDP.

    Accelerate (1.15) puts them into a unit of their own. In an encoder-decoder the encoder and the decoder hold the
    tied weight too, and FSDP refuses a weight that is in two units. Unseen, they all stay in the root unit.
    """
    if not is_fsdp:
        yield
        return
    names = ("get_input_embeddings", "get_output_embeddings")
    vars(model).update(dict.fromkeys(names, lambda: None))
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)
