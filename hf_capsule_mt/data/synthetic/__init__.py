"""A synthetic English-German pair: a grammar, a lexicon, and renderers for both languages."""
