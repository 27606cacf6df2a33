"""Guided routing: Algorithm 1, GDR, and its comparisons."""
