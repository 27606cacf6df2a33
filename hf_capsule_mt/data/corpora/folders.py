"""Which files of a folder are the corpus: those of one name, in as many parts as there are.

A folder that holds several corpora for a split is an error that lists them: none of them is taken by chance. And
nothing is written where a corpus is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_capsule_mt.data.corpora.text_files import PairSource

TABLE_ENDINGS = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_ABOUT = ("dataset_info.json", "dataset_infos.json")  # describe a data set, hold none
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_LISTED = 12


@dataclass(frozen=True)
class Parts(PairSource):
    """The files of one corpus, one after the other."""

    parts: tuple[PairSource, ...]

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def records(self, repaired: Counter[str]) -> Iterator[tuple[int, int, Any]]:
        for which, part in enumerate(self.parts):
            for number, record in enumerate(part.records(repaired)):
                yield which, number, record

    def parse(self, record: tuple[int, int, Any]) -> tuple[str, str]:
        return self.parts[record[0]].parse(record[2])

    def place(self, number: int, side: int, record: tuple[int, int, Any]) -> str:
        which, number, inner = record
        return self.parts[which].place(number, side, inner)

    def skipped(self) -> dict[str, int]:
        return dict(sum((Counter(part.skipped()) for part in self.parts), Counter()))

    def stamp(self) -> list[Any]:
        return ["parts", *(part.stamp() for part in self.parts)]


def check_apart(folder: str | Path, corpus: Any, languages: tuple[str, str], split: str, argument: str) -> None:
    """A ValueError if `folder`, the value of `argument`, is where the corpus is, or inside a folder that is one."""
    place = Path(folder).expanduser().resolve()
    for home, is_corpus in _homes(corpus, languages, split):
        if place == home or (is_corpus and place.is_relative_to(home)):
            raise ValueError(
                f"{argument}={str(folder)!r} is where the corpus is that is read from {home}; choose another folder, "
                "so that nothing is written beside the corpus or over it"
            )


def _homes(corpus: Any, languages: tuple[str, str], split: str) -> Iterator[tuple[Path, bool]]:
    """The folders of a corpus, and whether all of a folder is the corpus."""
    if not isinstance(corpus, str | Path):
        import datasets

        files = getattr(corpus, "cache_files", [])
        cache = Path(datasets.config.HF_DATASETS_CACHE).expanduser().resolve()
        for file in sum(files.values(), []) if isinstance(files, dict) else files:
            home = Path(file["filename"]).resolve().parent
            if not home.is_relative_to(cache):
                yield home, True
        return
    name = str(corpus).replace("{split}", split)
    names = [name.replace("{lang}", language) for language in languages] if "{lang}" in name else [name]
    for one in [*names, *(part.strip() for part in name.split(","))]:
        path = Path(one).expanduser()
        ends = ("", *(f".{language}{gz}" for language in languages for gz in ("", ".gz")))
        if any(Path(f"{path}{end}").is_file() for end in ends):
            yield path.resolve().parent, False
        elif one and path.is_dir():
            yield path.resolve(), True


def file_ending(path: Path) -> str:
    """`.tsv` of `x.tsv` and of `x.tsv.gz`."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def corpus_in_folder(
    folder: Path, languages: tuple[str, str], split: str, open_files: Callable[[tuple[Path, ...]], PairSource]
) -> PairSource | None:
    """The one corpus for this split; None where the folder holds no file that could be one.

    `open_files` opens one file, or the source file and the target file of a corpus.
    """
    candidates = _candidates(folder, languages)
    if not candidates:
        return None
    splits = {name: _splits_of(name, split) for name in candidates}
    chosen = [name for name, named in splits.items() if _known_split(split) in named]
    if not chosen and split == "train":
        chosen = [name for name, named in splits.items() if not named]
    if len(chosen) != 1:
        found = "several corpora" if chosen else "no corpus"
        raise ValueError(
            f"load_corpus: {folder} holds {found} for split {split!r}: {_listed(chosen or list(candidates))}; "
            "name the one to read"
        )
    parts = tuple(open_files(files) for files in candidates[chosen[0]])
    return parts[0] if len(parts) == 1 else Parts(parts)


def _candidates(folder: Path, languages: tuple[str, str]) -> dict[str, list[tuple[Path, ...]]]:
    """Names of corpora in the folder, and the files of each part."""
    found: dict[str, list[tuple[Path, ...]]] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or path.name in _ABOUT or not path.is_file():
            continue
        ending, gz = file_ending(path), ".gz" if path.suffix == ".gz" else ""
        stem = str(inside).removesuffix(f"{ending}{gz}")
        if ending in TABLE_ENDINGS and not (gz and ending == ".parquet"):
            found.setdefault(f"{_PART.sub('', stem)}{ending}{gz}", []).append((path,))
        elif ending == f".{languages[0]}":
            others = [folder / f"{stem}.{languages[1]}{end}" for end in ("", ".gz")]
            found |= {f"{stem}{ending}{gz} with {other.name}": [(path, other)] for other in others if other.is_file()}
    return found


def _splits_of(name: str, split: str) -> set[str]:
    """The splits that a name speaks of: `train-clean.en` of one, `pairs.tsv` of none."""
    words = {_known_split(word) for word in re.findall(r"[^\W_]+", name)}
    return words & {*_SPLIT_WORDS, _known_split(split)}


def _known_split(word: str) -> str:
    return next((split for split, words in _SPLIT_WORDS.items() if word.lower() in words), word)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
