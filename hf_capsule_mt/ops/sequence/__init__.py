"""Routing from a sentence of any length to a fixed number of capsules: Algorithm 1, CapsNMT."""
