"""Lexical shortlists: the output layer computes only words that are probable for the source."""

from hf_capsule_mt.inference.shortlist.shortlist import Shortlist

__all__ = ["Shortlist"]
