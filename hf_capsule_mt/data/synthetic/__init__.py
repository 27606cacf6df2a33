"""A synthetic English-German pair: a grammar, a lexicon, and the sentences of both sides."""
