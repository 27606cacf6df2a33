"""Limits the sentence lengths of a run to the number of positions of its model."""

from typing import Any

from hf_capsule_mt.recipes.recipe import Recipe


def fit_lengths(recipe: Recipe, positions: Any, owner: str) -> list[str]:
    """Lowers default lengths to the number of positions of `owner`, and returns a line to print for each.

    If the recipe itself sets a length above it, that is an error.
    """
    if not isinstance(positions, int):
        return []  # a recurrent model has no positions
    lengths: dict[str, Any] = {"max_source_length": recipe.data, "max_target_length": recipe.data}
    lengths |= {"generation_max_length": recipe.training}
    too_long = {name: options for name, options in lengths.items() if (getattr(options, name) or 0) > positions}
    problems = [
        f"{name}={getattr(options, name)}: {owner} has {positions} positions; set it to {positions} or less"
        for name, options in too_long.items()
        if recipe.explicit.get(name) is not None
    ]
    if problems:
        raise ValueError("\n".join(problems))
    for name, options in too_long.items():
        setattr(options, name, positions)
    return [f"{name}={positions}: the number of positions of {owner}" for name in too_long]
