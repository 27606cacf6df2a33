"""Routing modules: for layers, heads, source words, past and future."""
