"""Analyze a trained model on a test set: what its routing does, whether that matters, where it translates well.

    python scripts/analyze.py --model runs/demo --source test.en --references test.de
    python scripts/analyze.py --model runs/demo --source test.en --references test.de --tables length adequacy
    python scripts/analyze.py --model runs/demo --source test.en --references test.de --output runs/demo-analysis

The tables are: `routing`, entropy and diversity by iteration and the spread of activations (DLA, section 4.4);
`length`, BLEU and length by source length; `adequacy`, repetition, omission, length ratio, and r_OL of models with past
and future; `ablations`, scores with uniform, random and shuffled assignments; `iterations`, scores with 1 to 5 routing
iterations. Without `--tables` all that the model has. `--output` also writes `analysis.json` and a picture of each
table. `--translations` are scored instead of translating. `--alignments` adds CDR.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_capsule_mt.cli.command_line import at_least_one, run_command, usable_device

TABLES = ("routing", "length", "adequacy", "ablations", "iterations")
WITHOUT_ROUTING = ("length", "adequacy")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id")
    parser.add_argument("--source", type=Path, required=True, help="source text, one sentence a line")
    parser.add_argument("--references", type=Path, required=True, help="one reference for each line")
    parser.add_argument("--translations", type=Path, help="translations of this model; default: translate")
    parser.add_argument("--tables", nargs="+", choices=TABLES, help="default: all that the model has")
    parser.add_argument(
        "--alignments",
        nargs=2,
        type=Path,
        metavar=("REFERENCES", "TRANSLATIONS"),
        help="word alignments of the source with both, in Pharaoh format; needs --translations",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="a new folder for JSON and pictures")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--beam", type=at_least_one, default=4, help="number of beams, 1 for greedy search")
    parser.add_argument("--batch-size", type=at_least_one, default=32, help="sentences that are translated together")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of random and shuffled assignments")
    parser.add_argument("--device", default="cpu")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: analyze(arguments))


def analyze(arguments: argparse.Namespace) -> int:
    """Compute, print and write the tables; returns the exit code."""
    from hf_capsule_mt.evaluation.sentences import read_sentences

    check_arguments(arguments)
    sources, references = read_sentences(arguments.source), read_sentences(arguments.references)
    translations = None if arguments.translations is None else read_sentences(arguments.translations)
    counts = {"source": len(sources), "references": len(references)}
    if translations is not None:
        counts["translations"] = len(translations)
    if len(set(counts.values())) > 1:
        raise ValueError(f"lines: {', '.join(f'{name} {count}' for name, count in counts.items())}: must be as many")
    analysis = Analysis(arguments, sources, references, translations)
    results: dict[str, Any] = {}
    for name in analysis.tables():
        results[name] = analysis.table(name)
        if not arguments.json:
            print(f"{name}\n{results[name]}\n", flush=True)
    as_dicts = {name: result.as_dict() for name, result in results.items()}
    if arguments.json:
        print(json.dumps(as_dicts, indent=1))
    if arguments.output is not None:
        write_results(arguments.output, results, as_dicts)
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    if arguments.alignments and arguments.translations is None:
        raise ValueError("--alignments: name the translations that were aligned, with --translations")
    if arguments.output is not None and arguments.output.exists() and any(arguments.output.iterdir()):
        raise ValueError(f"--output {arguments.output}: the folder has files already; name a new one")


def write_results(folder: Path, results: dict[str, Any], as_dicts: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        result.plot(folder / f"{name}.png")
    for site in results["routing"].sites if "routing" in results else ():
        if site.mean_assignments is not None:
            results["routing"].plot_agreement(folder / f"agreement.{site.site}.png", site.site)
    part = folder / "analysis.json.part"
    part.write_text(json.dumps(as_dicts, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / "analysis.json")
    print(f"{folder}: analysis.json and {len(list(folder.glob('*.png')))} pictures", file=sys.stderr)


class Analysis:
    """A model with its test set. It translates at most once."""

    def __init__(
        self, arguments: argparse.Namespace, sources: list[str], references: list[str], translations: list[str] | None
    ) -> None:
        from transformers import AutoTokenizer

        import hf_capsule_mt  # noqa: F401  (registers its families)
        from hf_capsule_mt.checkpoint_names import reading_checkpoint
        from hf_capsule_mt.modeling.saving.any_model import load_translation_model

        self.arguments, self.sources, self.references = arguments, sources, references
        self.given_translations = translations
        device = usable_device(arguments.device)
        with reading_checkpoint(arguments.model):
            self.tokenizer = AutoTokenizer.from_pretrained(arguments.model)
            self.model: Any = load_translation_model(arguments.model).to(device).eval()
        self.options = {"num_beams": arguments.beam, "batch_size": arguments.batch_size}
        self.show_progress = sys.stderr.isatty()

    def tables(self) -> tuple[str, ...]:
        """The tables that were asked for, or all that the model has."""
        from hf_capsule_mt.analysis.routing_sites import routing_sites

        if self.arguments.tables:
            return tuple(self.arguments.tables)
        try:
            sites = routing_sites(self.model)
        except ValueError:
            return WITHOUT_ROUTING
        has_iterations = any(site.has_iterations for site in sites)
        return tuple(name for name in TABLES if has_iterations or name != "iterations")

    def table(self, name: str) -> Any:
        makers: dict[str, Callable[[], Any]] = {name: getattr(self, f"_{name}") for name in TABLES}
        return makers[name]()

    def translations(self) -> list[str]:
        from hf_capsule_mt import translate

        if self.given_translations is None:
            progress = self.show_progress
            texts = translate(self.model, self.tokenizer, self.sources, show_progress=progress, **self.options)
            self.given_translations = list(texts)
        return self.given_translations

    def _routing(self) -> Any:
        from hf_capsule_mt import routing_statistics

        pairs = self.sources, self.references
        return routing_statistics(self.model, self.tokenizer, *pairs, show_progress=self.show_progress)

    def _length(self) -> Any:
        from hf_capsule_mt import scores_by_length

        translations = {Path(self.arguments.model).name: self.translations()}
        return scores_by_length(self.sources, self.references, translations, show_progress=self.show_progress)

    def _adequacy(self) -> Any:
        from hf_capsule_mt import adequacy_table, overlap_rates, read_alignments

        name = Path(self.arguments.model).name
        options: dict[str, Any] = {}
        if self.arguments.alignments:
            reference_file, file = self.arguments.alignments
            options["reference_alignments"] = read_alignments(reference_file)
            options["alignments"] = {name: read_alignments(file)}
        if getattr(getattr(self.model, "auxiliary_losses", None), "has_bow", False):
            progress = self.show_progress
            pairs = self.sources, self.references
            options["overlaps"] = {name: overlap_rates(self.model, self.tokenizer, *pairs, show_progress=progress)}
        return adequacy_table(self.references, {name: self.translations()}, **options)

    def _ablations(self) -> Any:
        from hf_capsule_mt import ablation_scores

        return ablation_scores(*self._test_set(), seeds=tuple(self.arguments.seeds), **self.options)

    def _iterations(self) -> Any:
        from hf_capsule_mt import iteration_scores

        return iteration_scores(*self._test_set(), **self.options)

    def _test_set(self) -> tuple[Any, ...]:
        self.options["show_progress"] = self.show_progress
        return self.model, self.tokenizer, self.sources, self.references
