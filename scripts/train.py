"""Train a translation model by a recipe, translate its test set, and write down what came of it.

    python scripts/train.py scripts/recipes/synthetic/dla_em.yaml --output_dir runs/x --max_steps 50
    python scripts/train.py scripts/recipes/multi30k/marian.yaml --learning_rate 3e-4 --config.d_model 128
    accelerate launch --config_file scripts/accelerate/cpu.yaml scripts/train.py RECIPE.yaml --use_cpu

Run again, it goes on from the last checkpoint. `--help` explains the keys; the output folder gets the model, its
tokenizer, `recipe.yaml`, which makes the run again, `results.json`, a model card, and the translations.
"""

import sys


def main() -> int:
    from hf_capsule_mt.hub import names_on_hub, write_model_card
    from hf_capsule_mt.training.processes import leave_others
    from hf_capsule_mt.training.recipe import parse_recipe
    from hf_capsule_mt.training.recipe_run import Interrupted, run_recipe

    try:
        recipe = parse_recipe()
        run_recipe(recipe)
        if recipe.training.process_index == 0:
            write_model_card(
                recipe.training.output_dir,
                license=recipe.model.license,
                datasets=names_on_hub(recipe.data.train, recipe.data.validation, recipe.data.test) or None,
                base_model=next(iter(names_on_hub(recipe.model.init_from)), None),
            )
        code = 0
    except Interrupted:
        code = 143  # as if SIGTERM had ended it at once
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    leave_others()
    return code


if __name__ == "__main__":
    sys.exit(main())
