"""Recipes: YAML files with all settings of a training run, and the code that runs them.

Names are loaded on first use: listing recipes needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_capsule_mt.recipes.recipe import Recipe, parse_recipe
    from hf_capsule_mt.recipes.running.run import run_recipe

__all__ = ["Recipe", "parse_recipe", "run_recipe"]


if not TYPE_CHECKING:  # a type checker that saw it would let every misspelt name pass

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{'running.run' if name == 'run_recipe' else 'recipe'}"), name)
