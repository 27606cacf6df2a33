"""Routing by agreement as plain functions on tensors: no modules, no configuration. See README.md in this folder."""

from hf_capsule_mt.ops.routing import dynamic_routing, em_routing, guided_pooling, guided_routing, sequence_routing
from hf_capsule_mt.ops.routing_dispatch import RoutingChoice, explain_routing_choice

__all__ = [
    "RoutingChoice",
    "dynamic_routing",
    "em_routing",
    "explain_routing_choice",
    "guided_pooling",
    "guided_routing",
    "sequence_routing",
]
