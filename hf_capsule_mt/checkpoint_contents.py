"""The files of a checkpoint by name: what is copied from one to another, and what may be replaced."""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

CONFIGURATION_FILES = ("config.json", "generation_config.json")
# Of fast tokenizers, of Marian's, and of others that are made of pieces.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "target_vocab.json",  # of Marian, where the sides have vocabularies of their own
    "merges.txt",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "spiece.model",
    "tokenizer.model",
    "chat_template.jinja",
)
CARD = "README.md"
CODE_BEGINS = "# Copied from hf_capsule_mt "  # each exported file of code
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def belongs_to_checkpoint(path: Path) -> bool:
    """Whether a file is one that a checkpoint for translating has; what training needs is not among them, nor code
    that this package has not written."""
    if not path.is_file() or path.is_symlink():
        return False
    named = path.name in (*CONFIGURATION_FILES, *TOKENIZER_FILES, CARD) or WEIGHTS.fullmatch(path.name) is not None
    return named or (path.suffix == ".py" and path.read_bytes().startswith(CODE_BEGINS.encode()))


def belongs_to_copy_of(*sources: Path) -> Callable[[Path], bool]:
    """As `belongs_to_checkpoint`, and so does code of a user's that one of the `sources` holds too."""

    def belongs(path: Path) -> bool:
        copied = (source / path.name for source in sources if path.suffix == ".py" and path.is_file())
        return belongs_to_checkpoint(path) or any(
            one.is_file() and one.read_bytes() == path.read_bytes() for one in copied
        )

    return belongs


def code_files(folder: Path) -> list[Path]:
    """The Python files of a checkpoint that says in its configuration that it carries code."""
    try:
        carries_code = "auto_map" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        carries_code = False
    return sorted(folder.glob("*.py")) if carries_code else []


def copy_files(source: Path, output: Path, names: Iterable[str]) -> None:
    """Copy the files with these names that are there; a tokenizer may need libraries that copying it does not need.

    A link is an error if it leads out of the folder, since that would give away a file of somewhere else. Folders of
    the Hub's cache are made of links to the files beside them.
    """
    for name in names:
        path = source / name
        check_inside(path, source)
        if path.is_file():
            shutil.copyfile(path, output / name)


def check_inside(path: Path, folder: Path) -> None:
    """Raise a ValueError for a file of a checkpoint that is a link to somewhere else."""
    if path.is_symlink() and not _leads_inside(path, folder):
        raise ValueError(
            f"{path} is a link to {path.resolve()}, outside of the checkpoint: put the file itself there, or "
            "remove the link"
        )


def _leads_inside(link: Path, folder: Path) -> bool:
    target, folder = link.resolve(), folder.resolve()
    blobs = folder.parents[1] / "blobs" if folder.parent.name == "snapshots" else None
    return folder in target.parents or target.parent == blobs
