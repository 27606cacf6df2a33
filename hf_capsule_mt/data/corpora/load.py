"""Corpora of sentence pairs from files, folders, data sets or the synthetic grammar, cleaned into one Arrow file.

Pairs are read one after the other and written to disk as they come, and the finished file is memory-mapped: ten
million pairs take no more memory than ten thousand. What `drop_duplicates` has to know of each is on disk meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_capsule_mt.data.corpora.cache import PAIRS, corpus_folder, open_corpus, seal_corpus
from hf_capsule_mt.data.corpora.cleaning import CleaningReport, CleaningRules, SeenPairs, digest
from hf_capsule_mt.data.corpora.columns import PairColumns
from hf_capsule_mt.data.corpora.folders import check_apart
from hf_capsule_mt.data.corpora.sources import find_source
from hf_capsule_mt.data.corpora.text_files import BrokenRecord, PairSource, flaw, repair_text

if TYPE_CHECKING:
    import datasets

# Pairs that are cleaned and written together. For every such chunk the mapped file takes some 4 kB of memory, and a
# page or more of it is touched.
_CHUNK = 10_000
_STREAMED_CHUNK = 1_000
_QUIET = 2.0  # seconds until there is a progress bar


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs in the column `translation`, which `preprocess_pairs` takes, and what cleaning them did."""

    pairs: Any  # datasets.Dataset, or datasets.IterableDataset if streaming
    report: CleaningReport
    name: str


def load_corpus(
    corpus: str | Path | datasets.Dataset | datasets.DatasetDict,
    source: str = "en",
    target: str = "de",
    *,
    split: str = "train",
    cleaning: CleaningRules | None = None,
    num_proc: int | None = None,
    cache_dir: str | Path | None = None,
    streaming: bool = False,
    repair: bool = False,
    seed: int = 0,
    source_column: str | None = None,
    target_column: str | None = None,
    header: bool | None = None,
) -> Corpus:
    """Sentence pairs as `{"translation": {source: …, target: …}}`, memory-mapped from disk.

    | `corpus` | what is read |
    | --- | --- |
    | `data/train` | `data/train.en` and `data/train.de`, or with `.gz` |
    | `data/{split}.{lang}.gz` | a file for each language |
    | `a.txt,b.txt` | source file, target file |
    | `pairs.tsv`, `pairs.tsv.gz` | lines of source, tab, target; a header is skipped |
    | `pairs.csv`, `pairs.csv.gz` | a header, then rows with commas and double quotes, as the `csv` module reads them |
    | `pairs.jsonl`, `.json`, with `.gz` | lines of `{"translation": {"en": …, "de": …}}` |
    | `pairs.parquet` | a column `translation`, or two columns of texts |
    | `folder` | what `Dataset.save_to_disk` wrote, or the one corpus of these forms for the split |
    | a `Dataset` or `DatasetDict` | its rows |
    | `synthetic`, `synthetic:5000`, `synthetic:5000:12` | the synthetic pair: pairs, longest sentence in words |
    | `name`, `name:config` | a data set of the Hub; the network is used for this form alone |

    Args:
        split: of a data set or of the synthetic pair; files have none but by `{split}` in the name.
        cleaning: [`CleaningRules`]; by default pairs with a blank side are dropped.
        num_proc: processes that parse and clean (or draw, if synthetic) while this one reads and writes; not used when
            streaming. The pairs, their order and the report are the same for any number.
        cache_dir: where the Arrow file is kept, by default the cache of `datasets`; never the folder of the corpus.
            The same call on the same content finds it there. A damaged file is made again, with a warning. Processes
            that make it at the same time do not harm each other.
        streaming: nothing is written, but what `drop_duplicates` keeps while one iterates; the report counts while one
            iterates, and starts anew with every pass.
        repair: invalid UTF-8, NUL characters and line ends inside a sentence (U+0085 is one) are repaired and
            counted, and records that hold no pair are dropped and counted. Otherwise each of them is an error. Files
            of different length are an error always.
        seed: of the synthetic pair.
        source_column, target_column: names of the columns that hold the pair, where a corpus has columns. By default
            they are known by the languages (`en`, `text_en`, `English`) or by `source`, `src`, `target` and the like.
        header: whether the first row of a TSV or CSV file is a header. None looks: in a TSV file a row such as `en`,
            `de` or `source`, `target` is one; a CSV file has to have one. The report counts it as `dropped, header`.
    """
    wanted = PairColumns.checked(source, target, source_column, target_column, header)
    if num_proc is not None and (not isinstance(num_proc, int) or num_proc < 1):
        raise ValueError(f"load_corpus: num_proc={num_proc!r} must be an integer of at least 1, or None")
    import datasets

    name = str(corpus) if isinstance(corpus, str | Path) else type(corpus).__name__
    rules = CleaningRules() if cleaning is None else cleaning
    languages = (source, target)
    features = datasets.Features({"translation": datasets.Translation(languages=list(languages))})
    cache = Path(datasets.config.HF_DATASETS_CACHE if cache_dir is None else cache_dir).expanduser()
    check_apart(cache, corpus, languages, split, "load_corpus: cache_dir")
    found = find_source(corpus, wanted, split=split, seed=seed, streaming=streaming)
    if streaming:
        found.check()
        report = CleaningReport()

        def generate() -> Iterator[dict[str, Any]]:
            for rows in _cleaned(found, rules, repair, report, SeenPairs(), _STREAMED_CHUNK):
                for row in rows:
                    yield {"translation": dict(zip(languages, row, strict=True))}

        return Corpus(datasets.IterableDataset.from_generator(generate, features=features), report, name)

    folder = corpus_folder(cache, [found.stamp(), languages, asdict(rules), repair])
    opened = open_corpus(folder)
    if opened is None:
        _write(folder, name, found, rules, repair, num_proc, languages, features)
        opened = open_corpus(folder)
    if opened is None:
        raise OSError(f"load_corpus: {folder} cannot be read just after it was written; check the disk")
    pairs, report = opened
    if not report.kept:
        raise ValueError(f"load_corpus: {name!r} has no pair left\n{report}")
    return Corpus(pairs, report, name)


def _write(
    folder: Path,
    name: str,
    found: PairSource,
    rules: CleaningRules,
    repair: bool,
    num_proc: int | None,
    languages: tuple[str, str],
    features: Any,
) -> None:
    """Makes the folder at once, when all is in it; where another process was first, its folder stays."""
    from datasets.arrow_writer import ArrowWriter
    from datasets.utils import tqdm  # heeds disable_progress_bars()

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as temporary:
        made = Path(temporary) / "corpus"
        made.mkdir()
        report = CleaningReport()
        arrow = str(made / PAIRS)
        with (
            ArrowWriter(features=features, path=arrow, writer_batch_size=_CHUNK) as writer,
            tqdm(desc=f"Reading {name}", unit=" pairs", delay=_QUIET) as bar,
        ):
            for rows in _cleaned(found, rules, repair, report, SeenPairs(), _CHUNK, num_proc or 1):
                writer.write_batch({"translation": [dict(zip(languages, row, strict=True)) for row in rows]})
                bar.update(report.read - bar.n)
            writer.finalize()
        seal_corpus(made, report)
        try:
            os.rename(made, folder)
        except OSError:
            if not folder.exists():
                raise


def _cleaned(
    found: PairSource,
    rules: CleaningRules,
    repair: bool,
    report: CleaningReport,
    seen: SeenPairs,
    size: int,
    num_proc: int = 1,
) -> Iterator[list[tuple[str, str]]]:
    """The pairs that are kept, in order and in chunks; fills the report."""
    report.start(rules)
    report.add(0, Counter(found.skipped()), Counter())
    marks: Counter[str] = Counter()
    work = partial(_clean_chunk, found, rules, repair)
    for rows, digests, dropped, repaired in _in_order(work, _chunks(found.records(marks), size), num_proc):
        if digests:
            fresh = seen.new(digests)
            dropped["duplicates"] = len(rows) - int(fresh.sum())
            rows = [row for row, first in zip(rows, fresh, strict=True) if first]
        repaired.update(marks)
        marks.clear()
        report.add(len(rows), dropped, repaired)
        if rows:
            yield rows


def _chunks(records: Iterator[Any], size: int) -> Iterator[tuple[int, list[Any]]]:
    """Lists of records, and the number of the first."""
    start = 0
    while chunk := list(islice(records, size)):
        yield start, chunk
        start += len(chunk)


Cleaned = tuple[list[tuple[str, str]], list[int], Counter[str], Counter[str]]


def _clean_chunk(found: PairSource, rules: CleaningRules, repair: bool, chunk: tuple[int, list[Any]]) -> Cleaned:
    """The pairs kept of one chunk, their digests, how many were dropped and repaired."""
    start, records = chunk
    rows = []
    dropped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    for number, record in enumerate(records, start):
        try:
            texts = list(found.parse(record))
        except BrokenRecord as error:
            if not repair:
                raise ValueError(
                    f"{found.place(number, 0, record)}: {error}; repair=True drops such records"
                ) from None
            dropped["broken_record"] += 1
            continue
        for side, text in enumerate(texts):
            if (wrong := flaw(text)) is None:
                continue
            if not repair:
                raise ValueError(f"{found.place(number, side, record)}: {wrong}; mend it, or pass repair=True")
            texts[side] = repair_text(text, repaired)
        row = rules.mend(texts[0]), rules.mend(texts[1])
        rule = rules.broken(*row)
        if rule is None:
            rows.append(row)
        else:
            dropped[rule] += 1
    digests = [digest(*row) for row in rows] if rules.drop_duplicates else []
    return rows, digests, dropped, repaired


def _in_order(work: Callable[[Any], Cleaned], chunks: Iterable[Any], num_proc: int) -> Iterator[Cleaned]:
    """The results in the order of the chunks; few chunks are under way at any time, so that memory stays small."""
    if num_proc == 1:
        yield from map(work, chunks)
        return
    with ProcessPoolExecutor(num_proc) as pool:
        waiting: deque[Any] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(work, chunk))
            if len(waiting) > 2 * num_proc:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
