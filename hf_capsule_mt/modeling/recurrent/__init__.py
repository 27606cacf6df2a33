"""Recurrent layers, their cache, and the encoder-decoder that the recurrent families share."""
