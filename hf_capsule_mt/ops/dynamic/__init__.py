"""Dynamic routing: Algorithm 1, DLA and HEADS."""
