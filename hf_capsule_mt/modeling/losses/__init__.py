"""Losses: cross-entropy of translations, and the two auxiliary losses of past and future."""
