"""Saves models with their code, and loads weights safely."""
