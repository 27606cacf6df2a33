"""Explanations and pictures of routing: which inputs go to which capsules."""

from hf_capsule_mt.analysis.capsule_attention import CapsuleAttention, capsule_attention
from hf_capsule_mt.analysis.explain import Coverage, Explanation, explain
from hf_capsule_mt.analysis.heat_map import plot_assignments

__all__ = ["CapsuleAttention", "Coverage", "Explanation", "capsule_attention", "explain", "plot_assignments"]
