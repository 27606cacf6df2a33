"""Faster searches for translations."""
