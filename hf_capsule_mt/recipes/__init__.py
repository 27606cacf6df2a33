"""Recipes: YAML files with all settings of a training run, and the code that runs them."""

from hf_capsule_mt.recipes.recipe import Recipe, parse_recipe
from hf_capsule_mt.recipes.run import run_recipe

__all__ = ["Recipe", "parse_recipe", "run_recipe"]
