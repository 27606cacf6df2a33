"""Checkpoints of a run: what they hold, how they are written whole, found again, checked and averaged."""
