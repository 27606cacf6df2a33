"""What a corpus is called, and what it is read from: files, a folder or a name of `datasets`, the synthetic pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_capsule_mt.data.corpus_files import JsonLines, PairSource, TextFiles, TsvFile, file_stamp, pair_of
from hf_capsule_mt.data.synthetic import LONGEST, SyntheticPair

_SYNTHETIC_SIZES = {"train": 30_000, "valid": 1_000, "test": 1_000}
_HUB_NAME = re.compile(r"(?!.*\.(gz|tsv|jsonl?|txt)$)\w[\w.-]*(/[\w.-]+)?(:[\w.-]+)?")


@dataclass(frozen=True)
class Rows(PairSource):
    """The rows of a data set: a column `translation` of two languages, or a column for each."""

    dataset: Any
    name: str
    languages: tuple[str, str]
    stamps: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dataset": None}  # another process parses rows, it does not read them

    def records(self, repaired: Counter[str]) -> Iterator[Any]:
        return iter(self.dataset)

    def parse(self, record: Any) -> tuple[str, str]:
        return pair_of(record, self.languages)

    def place(self, number: int, side: int) -> str:
        return f"{self.name}, row {number}"

    def stamp(self) -> list[Any]:
        return ["rows", self.dataset._fingerprint, *self.stamps]


@dataclass(frozen=True)
class Synthetic(PairSource):
    """The first pairs of the synthetic corpus."""

    size: int
    pairs: SyntheticPair
    reverse: bool

    def records(self, repaired: Counter[str]) -> Iterator[int]:
        return iter(range(self.size))

    def parse(self, record: int) -> tuple[str, str]:
        pair = self.pairs.pair(record)
        return (pair.target, pair.source) if self.reverse else (pair.source, pair.target)

    def place(self, number: int, side: int) -> str:
        return f"synthetic pair {number}"

    def stamp(self) -> list[Any]:
        return ["synthetic", self.size, vars(self.pairs)]


def find_source(corpus: str, languages: tuple[str, str], *, split: str, seed: int, streaming: bool) -> PairSource:
    """What the name stands for; see `load_corpus`."""
    if corpus == "synthetic" or corpus.startswith("synthetic:"):
        return _synthetic(corpus, languages, split, seed)
    name = corpus.replace("{split}", split)
    if "{lang}" in name:
        return _text_files(corpus, [[name.replace("{lang}", language)] for language in languages])
    path = Path(name).expanduser()
    if path.is_file():
        return _one_file(path, languages)
    sides = [[f"{name}.{language}", f"{name}.{language}.gz"] for language in languages]
    if any(Path(candidate).expanduser().is_file() for side in sides for candidate in side):
        return _text_files(corpus, sides)
    if path.is_dir():
        return _folder(path, languages, split, streaming)
    if "," in name:
        parts = name.split(",")
        if len(parts) != 2:
            raise ValueError(f"load_corpus: {corpus!r} names {len(parts)} files; must be two, source,target")
        return _text_files(corpus, [[part.strip()] for part in parts])
    tried = f"there is no file or folder {name}, and no {' or '.join(sides[0])} with {' or '.join(sides[1])}"
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(f"load_corpus: {corpus!r} not found: {tried}; and no data set of the Hub has such a name")
    name, _, config = name.partition(":")
    return _load(name, config or None, languages, split, streaming, tried)


def _synthetic(corpus: str, languages: tuple[str, str], split: str, seed: int) -> Synthetic:
    options = corpus.split(":")[1:]
    if len(options) > 2 or not all(option.isdecimal() for option in options):
        raise ValueError(f"load_corpus: {corpus!r} must be synthetic, synthetic:PAIRS or synthetic:PAIRS:MAX_WORDS")
    if set(languages) != {"en", "de"}:
        raise ValueError(f"load_corpus: the synthetic pair is of en and de, not of {' and '.join(languages)}")
    split = "valid" if split == "validation" else split
    pairs = SyntheticPair(seed, split, max_words=int(options[1]) if len(options) > 1 else LONGEST)
    return Synthetic(int(options[0]) if options else _SYNTHETIC_SIZES[split], pairs, languages[0] == "de")


def _text_files(corpus: str, sides: list[list[str]]) -> TextFiles:
    """The first file there is for each side."""
    found = []
    for candidates in sides:
        paths = [path for path in (Path(name).expanduser() for name in candidates) if path.is_file()]
        if not paths:
            raise ValueError(f"load_corpus: {corpus!r}: there is no file {' or '.join(candidates)}")
        found.append(paths[0])
    return TextFiles((found[0], found[1]))


def _one_file(path: Path, languages: tuple[str, str]) -> PairSource:
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    match ending:
        case ".tsv":
            return TsvFile(path)
        case ".jsonl" | ".json":
            return JsonLines(path, languages)
    raise ValueError(
        f"load_corpus: {path} ends in {ending!r}; must be .tsv, .jsonl or .json, perhaps with .gz; "
        "plain text needs two files: source,target"
    )


def _folder(path: Path, languages: tuple[str, str], split: str, streaming: bool) -> Rows:
    """What `save_to_disk` wrote; otherwise data files, which `load_dataset` finds."""
    import datasets

    stamps = tuple(file_stamp(file) for file in sorted(path.rglob("*")) if file.is_file())
    if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        tried = f"{path} is no folder of Dataset.save_to_disk"
        return _load(str(path), None, languages, split, streaming, tried, stamps)
    loaded = datasets.load_from_disk(str(path))
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise ValueError(f"load_corpus: {path} has no split {split!r}; it has {', '.join(loaded)}")
        loaded = loaded[split]
    return Rows(_two_languages(loaded, str(path), languages), f"{path}, {split}", languages, stamps)


def _load(
    name: str,
    config: str | None,
    languages: tuple[str, str],
    split: str,
    streaming: bool,
    tried: str,
    stamps: tuple[Any, ...] = (),
) -> Rows:
    import datasets

    try:
        loaded = datasets.load_dataset(name, config, split=split, streaming=streaming)
    except OSError as error:
        raise ValueError(
            f"load_corpus: {name!r} not found: {tried}; and datasets.load_dataset says {type(error).__name__}: {error}"
        ) from error
    return Rows(_two_languages(loaded, name, languages), f"{name}, {split}", languages, stamps)


def _two_languages(dataset: Any, name: str, languages: tuple[str, str]) -> Any:
    """The columns that hold the pair."""
    columns = dataset.column_names
    if columns is None or "translation" in columns:
        return dataset if columns is None else dataset.select_columns(["translation"])
    if not set(languages) <= set(columns):
        raise ValueError(
            f"load_corpus: {name} has the columns {columns}; must have 'translation', or {' and '.join(languages)}"
        )
    return dataset.select_columns(list(languages))
