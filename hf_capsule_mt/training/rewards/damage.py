"""References damaged at random: translations whose coverage is lower, for the estimate of CDR to learn from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

UNDAMAGED, EXCHANGED = 0.1, 0.05  # shares of the references that stay, and that belong to another sentence
MOST_DAMAGED = 0.8  # of the tokens of a reference
IN_ONE_SPAN = 0.3  # share of the damaged references that lose one span; the others change at random places


def random_numbers(seed: int, *place: int) -> Any:
    """Random numbers that depend on the seed and on the place in training alone, so that no state must be saved."""
    return np.random.Generator(np.random.PCG64([seed, *place]))


def damage_references(references: Sequence[Sequence[int]], generator: Any) -> list[list[int]]:
    """One translation for each reference: whole, cut, or with tokens deleted, replaced or repeated."""
    tokens = [token for reference in references for token in reference]
    results = []
    for number, reference in enumerate(references):
        choice = generator.random()
        if choice < UNDAMAGED or not reference:
            results.append([*reference])
        elif choice < UNDAMAGED + EXCHANGED:
            results.append([*references[(number + 1) % len(references)]])
        elif generator.random() < IN_ONE_SPAN:
            results.append(without_span(reference, generator))
        else:
            results.append(replace_random_tokens(reference, tokens, generator))
    return results


def without_span(reference: Sequence[int], generator: Any) -> list[int]:
    """The reference without one span of 1 token up to `MOST_DAMAGED` of its tokens."""
    length = generator.integers(1, max(1, int(MOST_DAMAGED * len(reference))), endpoint=True)
    begin = generator.integers(0, len(reference) - length, endpoint=True)
    return [*reference[:begin], *reference[begin + length :]]


def replace_random_tokens(reference: Sequence[int], tokens: Sequence[int], generator: Any) -> list[int]:
    """The reference with changes at random places.

    A change deletes a token (one half), or replaces it by one of `tokens` or by the token before it (a quarter each).
    """
    is_hit = generator.random(len(reference)) < MOST_DAMAGED * generator.random()
    deed = generator.random(len(reference))
    others = generator.integers(0, len(tokens), size=len(reference))
    result: list[int] = []
    for position, token in enumerate(reference):
        if not is_hit[position]:
            result.append(token)
        elif deed[position] >= 0.75 and result:
            result.append(result[-1])
        elif deed[position] >= 0.5:
            result.append(tokens[others[position]])
    return result
