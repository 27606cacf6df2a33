"""Sentences, and worse translations of them, for tests of scores."""

import random

WORDS = "der die das Hund Katze Mann Frau Kind läuft sieht kauft rote blaue nicht heute im Park , nach Hause".split()


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) + "." for _ in range(count)]


def worsened(texts: list[str], share: float, seed: int) -> list[str]:
    """The texts, where this share of the words is another word, and some neighbours are exchanged."""
    draw = random.Random(seed)
    result = []
    for text in texts:
        words = [draw.choice(WORDS) if draw.random() < share else word for word in text.split()]
        if len(words) > 1 and draw.random() < share:
            place = draw.randrange(len(words) - 1)
            words[place], words[place + 1] = words[place + 1], words[place]
        result.append(" ".join(words))
    return result
