"""A model with a tokenizer, and a corpus of a few words, for tests of shortlists."""

from typing import Any, NamedTuple

SOURCES = ["the house", "the book", "a book", "the small house", "a small book", "a house"] * 3
TARGETS = ["das haus", "das buch", "ein buch", "das kleine haus", "ein kleines buch", "ein haus"] * 3


class Translator(NamedTuple):
    model: Any
    tokenizer: Any
