"""Where a run may begin: it replaces nothing that it has not written itself."""

import re
from pathlib import Path

from hf_capsule_mt.checkpoint_contents import CARD, CONFIGURATION_FILES, TOKENIZER_FILES, WEIGHTS

RECORD, RESULTS, RECIPE = "run.json", "results.json", "recipe.yaml"
# What a run writes or clears away; a run of ours has left its record beside them.
WRITTEN = {*CONFIGURATION_FILES, CARD, RESULTS, "trainer_state.json", "training_args.bin", "averaged"}
WRITTEN_LIKE = re.compile(rf"{WEIGHTS.pattern}|checkpoint-\d+|(validation|test)\.translations\.txt")


def check_new_run(folder: Path) -> None:
    """Raise a ValueError unless a new run may begin in `folder`: it is new or empty, or holds a run of ours.

    A first start that was killed leaves a recipe, a tokenizer and its lock, which are written anew. Files that no run
    writes, such as a log, may lie there too.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir={str(folder)!r} is a file: name a folder")
    if not folder.is_dir() or (folder / RECORD).exists():
        return
    names = sorted(path.name for path in folder.iterdir())
    started = {RECIPE, f"{RECIPE}.part"} & {*names}
    lost = [name for name in names if name in WRITTEN or WRITTEN_LIKE.fullmatch(name)]
    lost += [] if started else [name for name in names if name in TOKENIZER_FILES]
    if lost:
        raise ValueError(
            f"output_dir={str(folder)!r} holds {lost[0]} and no {RECORD}, so no run of ours wrote it, and it would be "
            "lost: name a new or an empty folder"
        )


def check_init_from(init_from: str | None, folder: Path) -> None:
    """Raise a ValueError if the run would write over the checkpoint that it starts from."""
    if init_from is None or not Path(init_from).is_dir():
        return
    source, output = Path(init_from).resolve(), folder.resolve()
    if output == source or output in source.parents:
        raise ValueError(
            f"init_from={init_from!r} lies in output_dir={str(folder)!r}, where the run would write over it: name "
            "another output_dir"
        )
