"""What a corpus is called, and what it is read from: files, a folder or a name of `datasets`, the synthetic pair."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_capsule_mt.data.corpora.cache import rows_digest
from hf_capsule_mt.data.corpora.columns import PairColumns, column_problem
from hf_capsule_mt.data.corpora.folders import TABLE_ENDINGS, corpus_in_folder, file_ending
from hf_capsule_mt.data.corpora.table_files import CsvFile, ParquetFile, TsvFile
from hf_capsule_mt.data.corpora.text_files import JsonLines, PairSource, TextFiles, pair_of
from hf_capsule_mt.data.synthetic.pairs import LONGEST, SyntheticPair

_SYNTHETIC_SIZES = {"train": 30_000, "valid": 1_000, "test": 1_000}
_HUB_NAME = re.compile(r"(?!.*\.(gz|tsv|csv|jsonl?|txt|parquet)$)\w[\w.-]*(/[\w.-]+)?(:[\w.-]+)?")


@dataclass(frozen=True)
class Rows(PairSource):
    """The rows of a data set: a column `translation` of two languages, or a column for each."""

    dataset: Any
    name: str
    wanted: PairColumns

    @classmethod
    def of(cls, dataset: Any, name: str, wanted: PairColumns) -> Rows:
        """The rows with only the columns of the pair, as Python objects whatever format the caller has set."""
        names, place = dataset.column_names, f"{name}, row"
        if names is None:  # a stream that tells nothing of itself
            return cls(dataset, place, wanted)
        if wanted.columns is None and "translation" in names:
            return cls(_plain(dataset).select_columns(["translation"]), place, wanted)
        places = wanted.find(names)
        if places is None:
            raise ValueError(column_problem(f"load_corpus: {name}", names, wanted))
        columns = (names[places[0]], names[places[1]])
        return cls(_plain(dataset).select_columns(list(columns)), place, wanted._replace(columns=columns))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dataset": None}  # another process parses rows, it does not read them

    def records(self, repaired: Counter[str]) -> Iterator[Any]:
        return iter(self.dataset)

    def parse(self, record: Any) -> tuple[str, str]:
        return pair_of(record, self.wanted)

    def place(self, number: int, side: int, record: Any) -> str:
        return f"{self.name} {number}"

    def stamp(self) -> list[Any]:
        return ["rows", self.wanted.columns, rows_digest(self.dataset)]


def _plain(dataset: Any) -> Any:
    return dataset.with_format(None)


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

    def place(self, number: int, side: int, record: Any) -> str:
        return f"synthetic pair {number}"

    def stamp(self) -> list[Any]:
        return ["synthetic", self.size, vars(self.pairs)]


def find_source(corpus: Any, wanted: PairColumns, *, split: str, seed: int, streaming: bool) -> PairSource:
    """What a name stands for, or a data set in memory; see `load_corpus`."""
    if not isinstance(corpus, str | Path):
        return _given_rows(corpus, wanted, split, streaming)
    corpus, languages = str(corpus), wanted.languages
    if corpus == "synthetic" or corpus.startswith("synthetic:"):
        return _synthetic(corpus, languages, split, seed)
    name = corpus.replace("{split}", split)
    if "{lang}" in name:
        return _text_files(corpus, [[name.replace("{lang}", language)] for language in languages])
    path = Path(name).expanduser()
    if path.is_file():
        return _one_file(path, wanted)
    sides = [[f"{name}.{language}", f"{name}.{language}.gz"] for language in languages]
    if any(Path(candidate).expanduser().is_file() for side in sides for candidate in side):
        return _text_files(corpus, sides)
    if path.is_dir():
        return _folder(path, wanted, split, streaming)
    if "," in name:
        parts = name.split(",")
        if len(parts) != 2:
            raise ValueError(f"load_corpus: {corpus!r} names {len(parts)} files; must be two, source,target")
        return _text_files(corpus, [[part.strip()] for part in parts])
    tried = f"there is no file or folder {name}, and no {' or '.join(sides[0])} with {' or '.join(sides[1])}"
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(f"load_corpus: {corpus!r} not found: {tried}; and no data set of the Hub has such a name")
    name, _, config = name.partition(":")
    return _load(name, config or None, wanted, split, streaming, tried)


def corpus_digest(corpus: Any, wanted: PairColumns, *, split: str, seed: int) -> str:
    """Of the content of a corpus, whatever its files are called."""
    stamp = find_source(corpus, wanted, split=split, seed=seed, streaming=False).stamp()
    return hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]


def _given_rows(corpus: Any, wanted: PairColumns, split: str, streaming: bool) -> Rows:
    """The rows of a `Dataset`, or of a split of a `DatasetDict`."""
    import datasets

    name = type(corpus).__name__
    if isinstance(corpus, datasets.DatasetDict | datasets.IterableDatasetDict):
        if split not in corpus:
            raise ValueError(f"load_corpus: the {name} has no split {split!r}; it has {', '.join(corpus)}")
        corpus, name = corpus[split], f"{name}, {split}"
    if not isinstance(corpus, datasets.Dataset | datasets.IterableDataset):
        raise ValueError(
            f"load_corpus: the corpus is of type {name} and must be a name, a path, a Dataset or a DatasetDict"
        )
    if isinstance(corpus, datasets.IterableDataset) and not streaming:
        raise ValueError(f"load_corpus: the corpus is of type {name}, which is a stream; pass streaming=True")
    return Rows.of(corpus, name, wanted)


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
    """The file there is for each side; two of them for one side are an error."""
    found = []
    for candidates in sides:
        paths = [path for path in (Path(name).expanduser() for name in candidates) if path.is_file()]
        if not paths:
            raise ValueError(f"load_corpus: {corpus!r}: there is no file {' or '.join(candidates)}")
        if len(paths) > 1:
            raise ValueError(
                f"load_corpus: {corpus!r}: there are {' and '.join(map(str, paths))}; remove one, or name both files "
                "as source,target"
            )
        found.append(paths[0])
    return TextFiles((found[0], found[1]))


def _one_file(path: Path, wanted: PairColumns) -> PairSource:
    match file_ending(path):
        case ".tsv":
            return TsvFile.open(path, wanted)
        case ".csv":
            return CsvFile.open(path, wanted)
        case ".jsonl" | ".json":
            return JsonLines(path, wanted)
        case ".parquet" if path.suffix == ".parquet":
            return ParquetFile.open(path, wanted)
    raise ValueError(
        f"load_corpus: {path} ends in {file_ending(path)!r}; must be .tsv, .csv, .jsonl or .json, perhaps with .gz, "
        "or .parquet; plain text needs two files: source,target"
    )


def _folder(path: Path, wanted: PairColumns, split: str, streaming: bool) -> PairSource:
    """What `save_to_disk` wrote, or the one corpus among the files; otherwise what `load_dataset` finds."""
    import datasets

    if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):

        def open_files(files: tuple[Path, ...]) -> PairSource:
            return _one_file(files[0], wanted) if len(files) == 1 else TextFiles((files[0], files[1]))

        corpus = corpus_in_folder(path, wanted.languages, split, open_files)
        if corpus is not None:
            return corpus
        tried = f"{path} holds no file in {', '.join(TABLE_ENDINGS)}, and is no folder of Dataset.save_to_disk"
        return _load(str(path), None, wanted, split, streaming, tried)
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever it meets in a damaged folder
        raise ValueError(
            f"load_corpus: {path} cannot be read as a folder of Dataset.save_to_disk: {type(error).__name__}: {error}"
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise ValueError(f"load_corpus: {path} has no split {split!r}; it has {', '.join(loaded)}")
        loaded = loaded[split]
    return Rows.of(loaded, f"{path}, {split}", wanted)


def _load(
    name: str,
    config: str | None,
    wanted: PairColumns,
    split: str,
    streaming: bool,
    tried: str,
) -> Rows:
    import datasets

    try:
        loaded = datasets.load_dataset(name, config, split=split, streaming=streaming)
    except Exception as error:  # of the network, of files that are not there, or of whatever is in them
        raise ValueError(
            f"load_corpus: {name!r} not found: {tried}; and datasets.load_dataset says {type(error).__name__}: {error}"
        ) from error
    return Rows.of(loaded, f"{name}, {split}", wanted)
