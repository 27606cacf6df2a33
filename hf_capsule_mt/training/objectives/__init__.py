"""Objectives over whole translations: minimum risk and policy gradient."""
