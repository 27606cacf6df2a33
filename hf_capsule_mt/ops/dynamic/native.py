"""Dynamic routing by compiled code (`csrc/dynamic_routing.h`)."""

from torch import Tensor

from hf_capsule_mt.ops.native_routing import dense, native_routing


def native_dynamic_routing(
    votes: Tensor, mask: Tensor | None, iterations: int, normalize: bool, stop_assignment_gradient: bool
) -> Tensor:
    """The capsules of the reference's `dynamic_routing`."""
    options = (iterations, normalize, stop_assignment_gradient, 0.0, 0.0)
    mask = None if mask is None else mask.contiguous()
    return native_routing("dynamic", options, dense(votes), None, None, None, mask)
