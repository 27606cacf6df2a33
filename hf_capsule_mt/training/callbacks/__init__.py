"""Callbacks of the trainer: what stops training, and the order of the pairs in each epoch."""
