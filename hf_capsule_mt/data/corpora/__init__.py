"""Corpora of sentence pairs: finding, reading, cleaning and keeping them."""
