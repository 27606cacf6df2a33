"""Configuration classes, one file for each family. Importing them needs no torch."""

from hf_capsule_mt.configuration.configuration_caps_nmt import CapsNMTConfig
from hf_capsule_mt.configuration.configuration_capsule_aggregated_marian import CapsuleAggregatedMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_marian import GDRMarianConfig
from hf_capsule_mt.configuration.configuration_gdr_rnmt import GDRRNMTConfig

__all__ = ["CapsNMTConfig", "CapsuleAggregatedMarianConfig", "GDRMarianConfig", "GDRRNMTConfig"]
