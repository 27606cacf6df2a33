"""Translate lines, or score translations that are there.

    python scripts/translate.py --model runs/demo < source.txt > target.txt
    python scripts/translate.py --model runs/demo --beam 4 --n-best 2 --scores source.txt -o target.tsv
    python scripts/translate.py --model runs/demo --score target.txt source.txt

Any model for `AutoModelForSeq2SeqLM` will do. One line of output for a line of input, in the same order; with
`--n-best` as many, and with `--scores` each has its score before it, separated by a tab. Blank lines stay blank, and
whatever would end a line within a translation is a space.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from command_line import INTERRUPTED, at_least_one, finite_number, usable_device


class Progress:
    """How many lines have been read, translated and written; a bar on standard error where it is wanted."""

    def __init__(self, total: int | None, shown: bool) -> None:
        from tqdm import tqdm

        self.read = self.written = 0
        self.bar = tqdm(desc="lines", total=total, unit="line", file=sys.stderr, disable=not shown)

    def __call__(self, lines: int) -> None:
        self.bar.update(lines)

    def place(self, to_file: bool) -> str:
        """How far the command is; a file gets its name only at the end."""
        written = "translated, and the output stays as it was" if to_file else "translated and written"
        return f"{self.read} lines were read, {self.written} of them {written}"

    def counted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.read += 1
            yield line


def read(files: list[Path]) -> Iterator[str]:
    """The lines of all files, or of standard input; only a line feed ends a line, and a carriage return before it."""
    for file in files or [None]:
        with ExitStack() as stack:
            source: BinaryIO = sys.stdin.buffer if file is None else stack.enter_context(open(file, "rb"))
            for number, line in enumerate(source, 1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    name = file or "standard input"
                    raise ValueError(f"{name}, line {number}: must be UTF-8 ({error}); convert it first") from error
                yield text.removesuffix("\n").removesuffix("\r")


def count_lines(files: list[Path]) -> int | None:
    """The lines of the files; None where they can be read only once."""
    if not files or not all(file.is_file() for file in files):
        return None
    count = 0
    for file in files:
        with open(file, "rb") as opened:
            count += sum(1 for _ in opened)
    return count


def run(arguments: argparse.Namespace, output: TextIO, progress: Progress) -> None:
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    import hf_capsule_mt  # noqa: F401  (its families become known)
    from hf_capsule_mt.checkpoint_names import reading_checkpoint
    from hf_capsule_mt.evaluation.streaming import one_line, score_pairs, translate_lines
    from hf_capsule_mt.modeling.saving.any_model import load_translation_model

    if progress.bar.disable:
        logging.disable_progress_bar()  # Transformers shows one of its own while it loads
    device = usable_device(arguments.device)
    dtype = getattr(torch, arguments.dtype)
    with reading_checkpoint(arguments.model):
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        model: Any = load_translation_model(arguments.model, dtype=dtype).to(device).eval()
    if arguments.int8:
        from hf_capsule_mt import quantize_for_cpu

        model = quantize_for_cpu(model)
    options = {"max_tokens": arguments.max_tokens, "on_progress": progress}
    if arguments.length_penalty is not None:
        options["length_penalty"] = arguments.length_penalty
    lines = progress.counted(read(arguments.files))
    if arguments.score is not None:
        for score in score_pairs(model, tokenizer, list(lines), list(read([arguments.score])), **options):
            print(f"{score:.6f}", file=output)
        return
    limits = {} if arguments.max_new_tokens is None else {"max_new_tokens": arguments.max_new_tokens}
    found = translate_lines(
        model,
        tokenizer,
        lines,
        window=arguments.window,
        n_best=arguments.n_best,
        with_scores=arguments.scores,
        num_beams=arguments.beam,
        **options,
        **limits,
    )
    for translations in found:
        scores = [f"{one.score:.6f}\t" if arguments.scores else "" for one in translations]
        progress.written += 1
        for score, translation in zip(scores, translations, strict=True):
            output.write(f"{score}{one_line(translation.text)}\n")
        output.flush()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="source text, a sentence a line; default: standard input")
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id")
    parser.add_argument("-o", "--output", type=Path, help="a file; default: standard output")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument("--beam", type=at_least_one, default=4, help="beams, 1 for greedy")
    parser.add_argument("--n-best", type=at_least_one, default=1, help="translations for a line")
    parser.add_argument("--scores", action="store_true", help="put each translation's score before it")
    parser.add_argument("--score", type=Path, metavar="TARGETS", help="score these translations instead")
    parser.add_argument("--length-penalty", type=finite_number, help="default: what the model says, 1.0 for --score")
    parser.add_argument("--max-tokens", type=at_least_one, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument(
        "--max-new-tokens", type=at_least_one, help="of a translation; default: twice the source and 50"
    )
    parser.add_argument("--window", type=at_least_one, default=1024, help="lines that are sorted by length together")
    parser.add_argument("--int8", action="store_true", help="on a CPU, for the families of quantize_for_cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show on standard error how many lines are done; default: if that is a terminal",
    )
    return parser


def main() -> int:
    progress: Progress | None = None
    to_file = False
    try:
        arguments = make_parser().parse_args()
        to_file = arguments.output is not None
        shown = sys.stderr.isatty() if arguments.progress is None else arguments.progress
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        with ExitStack() as stack:
            output: TextIO = sys.stdout
            progress = Progress(count_lines(arguments.files) if shown else None, shown)
            stack.callback(progress.bar.close)
            if arguments.output is None:
                sys.stdout.reconfigure(encoding="utf-8")
            else:
                from hf_capsule_mt.outputs import new_file

                sources = [*arguments.files, *([arguments.score] if arguments.score else []), Path(arguments.model)]
                output = stack.enter_context(new_file(arguments.output, sources, arguments.overwrite))
            run(arguments, output, progress)
            output.flush()
    except BrokenPipeError:
        # Who reads has gone, `head` for one; nothing is left to be flushed when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"interrupted: {progress.place(to_file) if progress else 'nothing was read'}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
