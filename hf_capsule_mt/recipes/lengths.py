"""How long sentences of a run may be: no longer than the model has positions."""

from typing import Any

from hf_capsule_mt.recipes.recipe import Recipe


def fit_lengths(recipe: Recipe, positions: Any, owner: str) -> list[str]:
    """Lengths that the recipe leaves open follow the positions of `owner`; returns what to say about it.

    A length that the recipe sets, and that is too long, is an error.
    """
    if not isinstance(positions, int):
        return []  # a recurrent model has none
    lengths: dict[str, Any] = {"max_source_length": recipe.data, "max_target_length": recipe.data}
    lengths |= {"generation_max_length": recipe.training}
    too_long = {name: part for name, part in lengths.items() if (getattr(part, name) or 0) > positions}
    problems = [
        f"{name}={getattr(part, name)}: {owner} has {positions} positions; set it to {positions} or less"
        for name, part in too_long.items()
        if recipe.given.get(name) is not None
    ]
    if problems:
        raise ValueError("\n".join(problems))
    for name, part in too_long.items():
        setattr(part, name, positions)
    return [f"{name}={positions}: as many as {owner} has positions" for name in too_long]
