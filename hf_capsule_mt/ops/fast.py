"""The fast implementations: compiled code for the CPU and Triton kernels for GPUs. Checkpoints contain neither."""

import math

import torch

from hf_capsule_mt.ops.dispatch import FastImplementation, choose_guided_scores, choose_routing
from hf_capsule_mt.ops.dynamic.native import native_dynamic_routing
from hf_capsule_mt.ops.dynamic.triton import fused_dynamic_routing
from hf_capsule_mt.ops.em.native import native_em_routing
from hf_capsule_mt.ops.em.triton import fused_em_routing
from hf_capsule_mt.ops.guided.native import native_guided_scores
from hf_capsule_mt.ops.guided.triton import fused_guided_scores
from hf_capsule_mt.ops.implementations import DISPATCHERS, FAST_IMPLEMENTATIONS
from hf_capsule_mt.ops.native_routing import LARGEST_POSITION, native_obstacle
from hf_capsule_mt.ops.triton_operators import LARGEST_TILE, device_obstacle, fused_obstacle, tile_elements


def add_fast_implementations() -> None:
    """Add the fast implementations, and the choice between all of them, to the tables in `implementations.py`."""
    DISPATCHERS["routing"] = lambda *arguments: choose_routing(*arguments).implementation
    DISPATCHERS["guided_scores"] = lambda votes, name, *_: choose_guided_scores(votes, name).implementation
    FAST_IMPLEMENTATIONS["native"] = FastImplementation(
        native_obstacle,
        _too_large_for_native,
        lambda device: "",
        {
            "dynamic_routing": native_dynamic_routing,
            "em_routing": native_em_routing,
            "guided_scores": native_guided_scores,
        },
    )
    FAST_IMPLEMENTATIONS["fused"] = FastImplementation(
        fused_obstacle,
        _too_large_for_kernels,
        device_obstacle,
        {
            "dynamic_routing": fused_dynamic_routing,
            "em_routing": fused_em_routing,
            "guided_scores": fused_guided_scores,
        },
    )


# The messages quote no sizes: under torch.compile they may be unknown.
def _too_large_for_native(shape: torch.Size) -> str:
    return f"more than {LARGEST_POSITION} votes a position" if math.prod(shape[-3:]) > LARGEST_POSITION else ""


LARGE_CAPSULE = 16  # numbers of a capsule


def _too_large_for_kernels(shape: torch.Size) -> str:
    # Larger capsules need more shared memory than some GPUs have: 128 of at most 99 KiB (compute capability 8.6, 8.9).
    if tile_elements(*shape[-3:]) <= (LARGEST_TILE if shape[-1] <= LARGE_CAPSULE else LARGEST_TILE // 2):
        return ""
    return (
        f"more than {LARGEST_TILE} votes a position, or half as many where capsules have more than {LARGE_CAPSULE} "
        "numbers (each axis rounded up to a power of two)"
    )
