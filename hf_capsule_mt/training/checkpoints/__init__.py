"""Checkpoints of a run: writing, checking, resuming, averaging."""
