"""From pairs of texts to batches of tokens."""
