"""Averages of weights: over the updates of a run, and over its last or best checkpoints."""
