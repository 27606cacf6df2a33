"""Do translations with a coverage warning leave out more than others? Compares them with their references.

    capsule-mt translate --model model_cards/tatoeba-en-de-marian --beam 4 data/tatoeba/test.en.gz -o marian.txt
    capsule-mt score --model model_cards/tatoeba-en-de-past-future --coverage data/tatoeba/test.en.gz marian.txt \
        -o marian.jsonl
    python scripts/studies/warned_translations.py marian.jsonl --references data/tatoeba/test.de.gz

Lines with a warning of an omission are compared with the other lines, and with other lines of the same source lengths,
because longer sentences have more warnings and are harder. Two more rows have as many lines as the warned ones: those
with the highest `omission_score`, and those with the lowest `score`, the model's log-probability.

`words` are those of the translations divided by those of the references: an omission lowers it. `recall` is the share
of the reference's words that the translation has, `precision` the share of the translation's words that the reference
has, without case and punctuation. A wrong word lowers both. Intervals are for resampled lines.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hf_capsule_mt.cli.command_line import CommandHelp, finite_number, run_command

WORD = re.compile(r"\w+")
SAMPLES = 1000  # for intervals
INTERVAL = 0.95


class Line(NamedTuple):
    """What is counted of one translation, and what the model says of it."""

    source_words: int
    words: int
    reference_words: int
    common: int
    score: float
    omission_score: float
    is_warned: bool


@dataclass(frozen=True)
class Group:
    """Some translations. `words_interval` and `recall_interval` hold 95 % of the values of resampled lines."""

    lines: int
    words: float
    words_interval: tuple[float, float]
    recall: float
    recall_interval: tuple[float, float]
    precision: float


def count_line(row: dict[str, Any], reference: str, threshold: float) -> Line:
    """A line of `capsule-mt score --coverage`."""
    made, wanted = (Counter(WORD.findall(text.lower())) for text in (row["translation"], reference))
    coverage = row["coverage"]
    return Line(
        len(row["source"].split()),
        made.total(),
        wanted.total(),
        (made & wanted).total(),
        row["score"],
        coverage["omission_score"],
        max(coverage["untranslated"], default=0.0) > threshold,
    )


def ratios(lines: Sequence[Line], weights: Sequence[float]) -> tuple[float, float, float]:
    """`words`, `recall` and `precision` of weighted lines; 0 where there are no words."""
    made, wanted, common = (
        sum(weight * line[column] for line, weight in zip(lines, weights, strict=True)) for column in (1, 2, 3)
    )
    return made / (wanted or 1), common / (wanted or 1), common / (made or 1)


def summary(lines: Sequence[Line], weights: Sequence[float], seed: int) -> Group | None:
    """None without lines."""
    if not lines:
        return None
    drawn, rows = random.Random(seed), range(len(lines))
    samples = [
        ratios([lines[row] for row in chosen], [weights[row] for row in chosen])
        for chosen in (drawn.choices(rows, k=len(rows)) for _ in range(SAMPLES))
    ]
    cut = round((1 - INTERVAL) / 2 * SAMPLES)
    words, recall, precision = ratios(lines, weights)
    of_words, of_recall = (sorted(sample[column] for sample in samples) for column in (0, 1))
    intervals = [(values[cut], values[-cut - 1]) for values in (of_words, of_recall)]
    return Group(len(lines), words, intervals[0], recall, intervals[1], precision)


def compare(lines: Sequence[Line], seed: int) -> dict[str, Group | None]:
    """The lines with a warning, and those that they are compared with.

    The others of the same lengths have a weight each, so that every length counts as often as among the warned lines.
    """
    warned, others = ([line for line in lines if line.is_warned is side] for side in (True, False))
    needed, there = (Counter(line.source_words for line in some) for some in (warned, others))
    same = [line for line in others if line.source_words in needed]
    groups = {
        "warned": warned,
        "highest omission score": sorted(lines, key=lambda line: -line.omission_score)[: len(warned)],
        "lowest score": sorted(lines, key=lambda line: line.score)[: len(warned)],
        "others": others,
    }
    weights = [needed[line.source_words] / there[line.source_words] for line in same]
    found = {name: summary(some, [1.0] * len(some), seed) for name, some in groups.items()}
    return {**found, "others of the same lengths": summary(same, weights, seed)}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of `capsule-mt score --coverage`."""
    from hf_capsule_mt.evaluation.sentences import lines_of_file

    rows = [json.loads(line) for line in lines_of_file(path)]
    for number, row in enumerate(rows, 1):
        if "coverage" not in row or "translation" not in row:
            raise ValueError(f"{path}, line {number}: must be a line of `capsule-mt score --coverage`")
        if row["coverage"] is not None and not row["coverage"]["is_reliable"]:
            raise ValueError(f"{path}, line {number}: its model gives no warnings; see measure_coverage")
    return rows


def make_parser() -> argparse.ArgumentParser:
    from hf_capsule_mt.analysis.coverage_warnings import DEFAULT_THRESHOLD

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=CommandHelp)
    parser.add_argument("scores", type=Path, nargs="+", metavar="SCORES", help="file of `capsule-mt score --coverage`")
    parser.add_argument("--references", required=True, type=Path, help="a translation by people of each line")
    parser.add_argument("--threshold", type=finite_number, default=DEFAULT_THRESHOLD, help="scores above it warn")
    parser.add_argument("--seed", type=int, default=0, help="seed that draws lines for intervals")
    parser.add_argument("--output", type=Path, help="JSON file to write; default: only print")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    return parser


def run(arguments: argparse.Namespace) -> int:
    from hf_capsule_mt.evaluation.sentences import read_sentences
    from hf_capsule_mt.outputs import check_file, new_file

    if arguments.output is not None:
        check_file(arguments.output, [*arguments.scores, arguments.references], arguments.overwrite)
    references = read_sentences(arguments.references)
    record: dict[str, Any] = {"seed": arguments.seed, "threshold": arguments.threshold, "systems": {}}
    print(f"seed {arguments.seed}\n\n| system | lines | number | words | recall | precision |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for path in arguments.scores:
        rows = read_rows(path)
        if len(rows) != len(references):
            raise ValueError(f"{path} has {len(rows)} lines and {arguments.references} {len(references)}")
        both = zip(rows, references, strict=True)
        lines = [count_line(row, reference, arguments.threshold) for row, reference in both if row["coverage"]]
        groups = compare(lines, arguments.seed)
        record["systems"][path.stem] = {name: group and asdict(group) for name, group in groups.items()}
        for name, group in groups.items():
            if group is not None:
                words, recall = (
                    f"{value:.3f} ({low:.3f} to {high:.3f})"
                    for value, (low, high) in (
                        (group.words, group.words_interval),
                        (group.recall, group.recall_interval),
                    )
                )
                print(f"| {path.stem} | {name} | {group.lines} | {words} | {recall} | {group.precision:.3f} |")
    if arguments.output is not None:
        with new_file(arguments.output, [*arguments.scores, arguments.references], arguments.overwrite) as file:
            file.write(json.dumps(record, indent=2) + "\n")
        print(f"\n{arguments.output}")
    return 0


def main(argv: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: run(arguments), "nothing was written")


if __name__ == "__main__":
    sys.exit(main())
