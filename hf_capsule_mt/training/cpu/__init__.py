"""Attention, dropout and memory of training on a CPU."""
