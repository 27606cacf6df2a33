"""From a checkpoint folder, as training leaves it, to one that can be given away."""

import shutil
from os import PathLike
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM

from hf_capsule_mt.hub.verification import verify

# Of fast tokenizers, of Marian's and of others that are made of pieces.
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "target_vocab*",  # of Marian, where the sides have vocabularies of their own
    "merges.txt",
    "*.spm",
    "*.model",
)


def export_checkpoint(
    source: str | PathLike[str], output: str | PathLike[str], max_shard_size: str = "5GB"
) -> list[Path]:
    """Write the model, its code, tokenizer and card to the folder `output`, verify that, and return its files.

    What else is in `source`, as the state of an optimizer, stays there.
    """
    source, output = Path(source), Path(output)
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty: give a new folder, so that nothing old is given away with it")
    model = AutoModelForSeq2SeqLM.from_pretrained(source)
    if not hasattr(model.config, "carry_code"):
        raise ValueError(f"{source} holds a {type(model).__name__}, which is no model of hf_capsule_mt")
    model.save_pretrained(output, export_code=True, max_shard_size=max_shard_size)
    copy_files(source, output, (*TOKENIZER_FILES, "README.md"))
    verify(output)
    return sorted(output.iterdir())


def copy_files(source: Path, output: Path, patterns: tuple[str, ...]) -> None:
    """As they are: a tokenizer may need libraries to be loaded that copying it does not need."""
    for path in {path for pattern in patterns for path in source.glob(pattern)}:
        shutil.copyfile(path, output / path.name)
