"""EM routing: Algorithm 2, DLA and HEADS."""
