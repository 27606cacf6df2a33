"""Pictures of what routings do."""

from hf_capsule_mt.analysis.explain import Coverage, Explanation, explain
from hf_capsule_mt.analysis.heat_map import plot_assignments

__all__ = ["Coverage", "Explanation", "explain", "plot_assignments"]
