"""Train a translation model by a recipe, translate its test set, and write down what came of it.

    python scripts/train.py scripts/recipes/synthetic/dla_em.yaml --output_dir runs/x --max_steps 50
    python scripts/train.py scripts/recipes/multi30k/marian.yaml --learning_rate 3e-4 --config.d_model 128
    accelerate launch --num_processes 2 scripts/train.py scripts/recipes/synthetic/dla_em.yaml --use_cpu

Run again, it goes on from the last checkpoint. `--help` explains the keys; the output folder gets the model, its
tokenizer, `recipe.yaml`, which makes the run again, `results.json`, and the translations.
"""

import sys


def main() -> int:
    from hf_capsule_mt.training.recipe import parse_recipe
    from hf_capsule_mt.training.recipe_run import run_recipe

    try:
        run_recipe(parse_recipe())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
