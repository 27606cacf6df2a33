"""Recipes: YAML files that name everything a training run needs, and what runs them."""

from hf_capsule_mt.recipes.recipe import Recipe, parse_recipe
from hf_capsule_mt.recipes.run import run_recipe

__all__ = ["Recipe", "parse_recipe", "run_recipe"]
