"""Losses: cross-entropy of a translation, and the two auxiliary losses of past and future."""
