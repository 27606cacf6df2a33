"""Saving models with their code, and loading weights safely."""
