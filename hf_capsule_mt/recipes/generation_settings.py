"""The settings of the final translations, which a run saves with its model."""

from typing import Any

from hf_capsule_mt.recipes.recipe import Recipe

# By the setting of the model: the key of a recipe that it comes from.
KEYS = {"max_length": "generation_max_length", "num_beams": "num_beams", "length_penalty": "length_penalty"}


def set_generation(model: Any, recipe: Recipe) -> list[str]:
    """Writes beams and the longest length into the model's generation settings.

    Without a length, `generate()` of Transformers stops after 20 tokens. After a warm start, returns a line to print
    for each setting of the checkpoint that changes.
    """
    values: dict[str, Any] = {
        "max_length": recipe.training.generation_max_length,
        "num_beams": recipe.model.num_beams,
    }
    if recipe.model.num_beams > 1:
        values["length_penalty"] = recipe.model.length_penalty
    lines = []
    for name, value in values.items():
        before = getattr(model.generation_config, name, None)
        start = recipe.model.init_from
        if start is not None and before not in (None, value):
            lines.append(f"generation_config.{name}={value}, in {start} it is {before}: {_reason(name, recipe)}")
        setattr(model.generation_config, name, value)
    return lines


def _reason(name: str, recipe: Recipe) -> str:
    key = KEYS[name]
    if recipe.explicit.get(key) is not None:
        return f"the recipe sets {key}"
    if name == "max_length":
        return f"longer targets are cut in training (max_target_length); {key} sets another limit"
    return f"the default of {key}"
