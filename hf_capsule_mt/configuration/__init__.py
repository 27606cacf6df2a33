"""Configuration classes, one family a file. Importing them needs no torch."""

from hf_capsule_mt.configuration.configuration_capsule_aggregated_marian import CapsuleAggregatedMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_marian import GDRMarianConfig

__all__ = ["CapsuleAggregatedMarianConfig", "GDRMarianConfig"]
