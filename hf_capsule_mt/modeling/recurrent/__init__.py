"""Recurrent layers, their cache, and the base classes of the recurrent families."""
