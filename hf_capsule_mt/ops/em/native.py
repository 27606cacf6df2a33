"""EM routing by compiled code (`csrc/em_routing.h`)."""

from torch import Tensor

from hf_capsule_mt.ops.native_routing import dense, native_routing


def native_em_routing(
    votes: Tensor,
    log_activations: Tensor | None,
    beta_a: Tensor,
    beta_u: Tensor,
    mask: Tensor | None,
    iterations: int,
    inverse_temperature: float,
    variance_floor: float,
    stop_assignment_gradient: bool,
) -> Tensor:
    """The capsules of the reference's `em_routing`."""
    options = (iterations, False, stop_assignment_gradient, inverse_temperature, variance_floor)
    small = [None if each is None else each.float().contiguous() for each in (log_activations, beta_a, beta_u)]
    return native_routing("em", options, dense(votes), *small, None if mask is None else mask.contiguous())
