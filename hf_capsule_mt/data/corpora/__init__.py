"""Corpora of sentence pairs: find, read, clean and cache them."""
