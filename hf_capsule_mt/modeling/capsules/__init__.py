"""The modules that route: layers, heads, source words, past and future."""
