"""Models whose matrices are int8, for the CPU."""
