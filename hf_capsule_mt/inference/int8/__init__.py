"""Models with int8 matrices for the CPU."""
