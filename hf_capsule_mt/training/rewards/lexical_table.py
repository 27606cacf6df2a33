"""The table of translation probabilities that says what a translation covers: learned once, kept on disk.

Legend: `E` entries, `P` training pairs.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor

from hf_capsule_mt.inference.shortlist import lexicon
from hf_capsule_mt.training.rewards.scorers import coverage_scorer
from hf_capsule_mt.training.rewards.scorers.coverage_scorer import CoverageScorer, pair_digest
from hf_capsule_mt.training.rewards.settings import RewardSettings

SMALLEST_PROBABILITY = 1e-3  # smaller ones are left out: they are below that of the empty word
COMPLETE = "complete"
ROWS = 1000  # of a data set, read together
TABLE = (coverage_scorer.KEYS, coverage_scorer.PROBABILITIES, coverage_scorer.COLUMNS)
PAIRS = (coverage_scorer.PAIR_DIGESTS, coverage_scorer.PAIR_STARTS, coverage_scorer.PAIR_COVERAGE)


@dataclass(frozen=True)
class TokenPairs:
    """Training pairs as token ids without special tokens."""

    sources: Sequence[Sequence[int]]  # [P]
    targets: Sequence[Sequence[int]]  # [P]

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ValueError(f"{len(self.sources)} sources and {len(self.targets)} targets: must be as many")
        if not any(s and t for s, t in zip(self.sources, self.targets, strict=True)):
            raise ValueError("no training pair has words on both sides: coverage is learned from sentence pairs")

    @classmethod
    def from_dataset(cls, dataset: Any, tokenizer: Any) -> "TokenPairs":
        """The pairs of rows with `input_ids` and `labels`, as `preprocess_pairs` makes them."""
        if not hasattr(dataset, "__len__") or len(dataset) == 0:
            raise ValueError(
                f"the training set is a {type(dataset).__name__} without a length, or has no rows: coverage is "
                "learned from all training pairs before training; give a data set with a length, or use the reward "
                "bleu or chrf"
            )
        names = getattr(dataset, "column_names", None) or list(dataset[0])
        missing = [name for name in ("input_ids", "labels") if name not in names]
        if missing:
            raise ValueError(
                f"the training set has the columns {', '.join(names)} and no {' and no '.join(missing)}: tokenize it "
                "with preprocess_pairs"
            )
        left_out = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} | {-100}
        sides: list[list[list[int]]] = [[], []]
        for row in rows_of(dataset):
            for side, tokens in zip(sides, row, strict=True):
                side.append([int(token) for token in tokens if int(token) not in left_out])
        return cls(*sides)


def rows_of(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """`input_ids` and `labels` of all rows. A `datasets.Dataset` gives many at a time, which is faster."""
    if not isinstance(dataset, datasets.Dataset):
        yield from ((row["input_ids"], row["labels"]) for row in dataset)
        return
    columns = dataset.select_columns(["input_ids", "labels"]).with_format(None)
    for rows in columns.iter(batch_size=ROWS):
        yield from zip(rows["input_ids"], rows["labels"], strict=True)


@dataclass(frozen=True)
class LexicalTable:
    """A folder with the table and with the source tokens that each reference of the training pairs covers."""

    folder: Path

    @classmethod
    def for_pairs(cls, pairs: TokenPairs, settings: RewardSettings) -> "LexicalTable":
        """The table of these pairs: from the cache, or learned now. Equal pairs and settings give equal bytes."""
        folder = cache_folder(settings) / f"coverage-{digest(pairs, settings)}"
        if not (folder / COMPLETE).is_file():
            write_folder(folder, pairs, settings)
        return cls(folder)

    def entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source tokens, target tokens and `p(target | source)`, `[E]` each."""
        keys = torch.from_numpy(np.load(self.folder / coverage_scorer.KEYS))
        columns = int(np.load(self.folder / coverage_scorer.COLUMNS))
        return keys // columns, keys % columns, torch.from_numpy(np.load(self.folder / coverage_scorer.PROBABILITIES))

    def scorer(self, settings: RewardSettings) -> CoverageScorer:
        return CoverageScorer(self.folder, settings.coverage_threshold)


def cache_folder(settings: RewardSettings) -> Path:
    if settings.cache_folder is not None:
        return Path(settings.cache_folder).expanduser()
    return Path(datasets.config.HF_DATASETS_CACHE).expanduser() / "hf_capsule_mt-rewards"


def digest(pairs: TokenPairs, settings: RewardSettings) -> str:
    """Of the pairs, of the settings that change the folder, and of the code that writes and reads it."""
    result = hashlib.sha256()
    for file in (__file__, lexicon.__file__, coverage_scorer.__file__):
        result.update(Path(file).read_bytes())
    result.update(repr((settings.lexicon_rounds, settings.lexicon_cells, settings.coverage_threshold)).encode())
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        result.update(np.array([len(source), len(target), *source, *target], dtype="<i8").tobytes())
    return result.hexdigest()[:24]


def learned_from(pairs: TokenPairs, cells: int) -> list[int]:
    """The numbers of evenly spread pairs with about so many cells, at least of one pair with words on both sides."""
    sizes = np.array([len(s) * len(t) for s, t in zip(pairs.sources, pairs.targets, strict=True)], dtype=np.float64)
    share = min(1.0, cells / max(1.0, float(sizes.sum())))
    numbers = np.arange(len(sizes))
    is_chosen = np.floor((numbers + 1) * share) > np.floor(numbers * share)
    is_chosen[np.argmax(sizes > 0)] |= not (is_chosen & (sizes > 0)).any()
    return [int(number) for number in numbers[is_chosen]]


def write_folder(folder: Path, pairs: TokenPairs, settings: RewardSettings) -> None:
    """Learn the table and write the folder, which appears only when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True) as temporary:
        unfinished = Path(temporary) / "table"
        unfinished.mkdir()
        numbers = learned_from(pairs, settings.lexicon_cells)
        for name, array in zip(TABLE, learn(pairs, numbers, settings.lexicon_rounds), strict=True):
            np.save(unfinished / name, array, allow_pickle=False)
        scorer = CoverageScorer(unfinished, settings.coverage_threshold)
        for name, array in zip(PAIRS, reference_coverage(pairs, scorer), strict=True):
            np.save(unfinished / name, array, allow_pickle=False)
        (unfinished / COMPLETE).touch()
        try:
            os.rename(unfinished, folder)
        except OSError:  # another process was faster, or the folder is what an interrupted copy left
            if not (folder / COMPLETE).is_file():
                shutil.rmtree(folder)
                os.rename(unfinished, folder)


def learn(pairs: TokenPairs, numbers: Iterable[int], rounds: int) -> tuple[Any, Any, Any]:
    """Keys `[E]`, ascending, probabilities `[E]` and the number of columns of IBM model 1."""
    chosen = [*numbers]
    table = lexicon.ibm_model_1(
        [list(pairs.sources[n]) for n in chosen], [list(pairs.targets[n]) for n in chosen], rounds
    )
    keep = table.weights >= SMALLEST_PROBABILITY
    sources, targets, weights = (field[keep].numpy() for field in table)
    columns = 1 + int(targets.max(initial=0))
    keys = sources * columns + targets
    order = np.argsort(keys)
    return keys[order], weights[order].astype(np.float32), np.array(columns)


def reference_coverage(pairs: TokenPairs, scorer: CoverageScorer) -> tuple[Any, Any, Any]:
    """Digests of the pairs `[P]`, ascending; where the coverage of each starts `[P]`; the coverage of all, bool."""
    digests = np.array([pair_digest(s, t) for s, t in zip(pairs.sources, pairs.targets, strict=True)], dtype=np.uint64)
    lengths = np.array([len(source) for source in pairs.sources], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    coverage = [scorer.covered(s, t) for s, t in zip(pairs.sources, pairs.targets, strict=True)]
    order = np.argsort(digests, kind="stable")
    return digests[order], starts[order], np.concatenate([*coverage, np.zeros(0, dtype=bool)])
