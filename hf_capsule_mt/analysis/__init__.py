"""Pictures of what routings do."""

from hf_capsule_mt.analysis.heat_map import plot_assignments

__all__ = ["plot_assignments"]
