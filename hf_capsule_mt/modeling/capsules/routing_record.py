"""Collecting assignment probabilities from wherever routing happens, without passing them through every layer.

A routing module deep inside an attention returns a tensor and nothing else. While a record is open on the current
thread, each routing site leaves its assignments there under its own name; while none is, asking costs one look-up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class RoutingRecord:
    """Assignments `[iterations, batch, positions, inputs, outputs]` by the name of the routing site."""

    assignments: dict[str, Tensor] = field(default_factory=dict)
    # Gradient checkpointing runs a layer twice and demands that both runs save the same tensors: the second run has
    # no record any more, so the first may only look on, without a graph of its own.
    detached: bool = False


_open_record: ContextVar[RoutingRecord | None] = ContextVar("open_routing_record", default=None)


class _CompiledRecord:
    """Stands in for the context variable under torch.compile, which cannot trace one; not safe across threads."""

    def __init__(self) -> None:
        self.current: RoutingRecord | None = None


_compiled_record = _CompiledRecord()  # an object, since PyTorch 2.11 cannot trace attributes of a class


def open_record() -> RoutingRecord | None:
    """The record that routing sites write to, or None when nobody asked."""
    return _compiled_record.current if torch.compiler.is_compiling() else _open_record.get()


@contextmanager
def record_routings(wanted: bool | None, detached: bool = False) -> Iterator[RoutingRecord | None]:
    """Open a record if `wanted`; one that is open already is used again, so that the outermost caller gets all."""
    current = open_record()
    if not wanted or current is not None:
        yield current
        return
    record = RoutingRecord(detached=detached)
    if torch.compiler.is_compiling():
        _compiled_record.current = record
        try:
            yield record
        finally:
            _compiled_record.current = None
        return
    token = _open_record.set(record)
    try:
        yield record
    finally:
        _open_record.reset(token)
