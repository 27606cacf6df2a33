"""Routing of a sentence of any length: Algorithm 1, CapsNMT."""
