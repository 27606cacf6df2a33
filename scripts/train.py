"""Train a translation model with a recipe, translate its test set, and write the results.

    python scripts/train.py synthetic/dla_em --output_dir runs/x --max_steps 50
    python scripts/train.py multi30k/marian --learning_rate 3e-4 --config.d_model 128
    accelerate launch --config_file scripts/accelerate/cpu.yaml scripts/train.py RECIPE.yaml --use_cpu

The same command continues from the last checkpoint, and does nothing if the run is finished. Ctrl-C ends a run with a
checkpoint. `--help` explains the keys. The output folder gets the model, its tokenizer, `results.json`, `run.json`, a
model card, the translations, and `recipe.yaml`, which repeats the run.
"""

import sys
from pathlib import Path


def main() -> int:
    try:
        return train()
    except KeyboardInterrupt:  # before training, after it, or the second Ctrl-C
        print(
            "stopped; the same command continues from the last checkpoint, or starts again without one",
            file=sys.stderr,
        )
        return 130


def train() -> int:
    from hf_capsule_mt.hub import names_on_hub, write_model_card
    from hf_capsule_mt.recipes.recipe import parse_recipe
    from hf_capsule_mt.recipes.run import RESULTS, Interrupted, run_recipe
    from hf_capsule_mt.training.processes import close_process_group

    try:
        recipe = parse_recipe()
        results, card = (Path(str(recipe.training.output_dir), name) for name in (RESULTS, "README.md"))
        before = results.read_bytes() if results.is_file() else None
        run_recipe(recipe)
        # The card may have been edited, so it is only rewritten if the results changed.
        if recipe.training.process_index == 0 and not (card.is_file() and results.read_bytes() == before):
            write_model_card(
                recipe.training.output_dir,
                license=recipe.model.license,
                datasets=names_on_hub(recipe.data.train, recipe.data.validation, recipe.data.test) or None,
                base_model=next(iter(names_on_hub(recipe.model.init_from)), None),
            )
        code = 0
    except Interrupted as interrupted:
        code = interrupted.exit_code  # the exit code of a program that the signal ends at once
    except (ValueError, OSError, ImportError) as error:  # ImportError: an optional library is missing
        print(f"error: {error}", file=sys.stderr)
        return 1
    close_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
