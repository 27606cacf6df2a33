"""Compares systems: one table of scores, parameters and speed, tests over sentences and over seeds."""
