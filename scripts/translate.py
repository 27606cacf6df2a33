"""Translate lines, or score existing translations.

    python scripts/translate.py --model runs/demo < source.txt > target.txt
    python scripts/translate.py --model runs/demo --beam 4 --n-best 2 --scores source.txt -o target.tsv
    python scripts/translate.py --model runs/demo --score target.txt source.txt
    python scripts/translate.py source.txt --model runs/demo --int8 --shortlist

`--model` is any model for `AutoModelForSeq2SeqLM`, or a saved int8 model. Each line of input gives one line of output,
in the same order, or N lines with `--n-best N`. With `--scores` each line starts with its score and a tab. Blank lines
stay blank. Line breaks within a translation become spaces.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from command_line import INTERRUPTED, CommandHelp, at_least_one, finite_number, usable_device


class Progress:
    """Counts the lines that were read and written; with `shown`, a progress bar on standard error."""

    def __init__(self, total: int | None, shown: bool) -> None:
        from tqdm import tqdm

        self.read = self.written = 0
        self.bar = tqdm(desc="lines", total=total, unit="line", file=sys.stderr, disable=not shown)

    def __call__(self, lines: int) -> None:
        self.bar.update(lines)

    def summary(self, to_file: bool) -> str:
        """The progress in words. An output file appears only at the end."""
        written = "translated, and the output stays as it was" if to_file else "translated and written"
        return f"{self.read} lines were read, {self.written} of them {written}"

    def counted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.read += 1
            yield line


def read_lines(files: list[Path]) -> Iterator[str]:
    """The lines of all files, or of standard input. A line ends with a line feed, or with CR and LF."""
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
    """The number of lines in the files; None for input that can be read only once."""
    if not files or not all(file.is_file() for file in files):
        return None
    count = 0
    for file in files:
        with open(file, "rb") as opened:
            count += sum(1 for _ in opened)
    return count


def load_model(name: str, device: Any, dtype: Any, int8: bool, shortlist: str | bool | None) -> Any:
    """The model of a float or an int8 checkpoint; with `int8` always an int8 model.

    `shortlist` is a file or a folder, or True for the one in the checkpoint.
    """
    import torch

    from hf_capsule_mt import Shortlist, load_quantized, quantize_for_cpu
    from hf_capsule_mt.modeling.saving.any_model import load_translation_model
    from hf_capsule_mt.modeling.saving.int8_checkpoints import is_int8_checkpoint

    if is_int8_checkpoint(name):
        if device.type != "cpu" or dtype != torch.float32:
            raise ValueError(
                f"--model {name} is in int8, which needs the CPU and float32: leave out --device and --dtype, or name "
                "the float model"
            )
        model = load_quantized(name)
        if shortlist is not None:
            model.use_shortlist(Shortlist.load(name if shortlist is True else shortlist))
        return model
    if shortlist is not None and not int8:
        raise ValueError("--shortlist needs an int8 model: add --int8")
    model = load_translation_model(name, dtype=dtype).to(device).eval()
    return quantize_for_cpu(model, shortlist=name if shortlist is True else shortlist) if int8 else model


def run(arguments: argparse.Namespace, output: TextIO, progress: Progress) -> None:
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    import hf_capsule_mt  # noqa: F401  (registers its families)
    from hf_capsule_mt.checkpoint_names import reading_checkpoint
    from hf_capsule_mt.evaluation.streaming import one_line, score_pairs, translate_lines

    if arguments.score is not None and arguments.shortlist is not None:
        raise ValueError("--score computes the probabilities of all words: leave out --shortlist")
    if progress.bar.disable:
        logging.disable_progress_bar()  # Transformers' own bar for loading
    device = usable_device(arguments.device)
    dtype = getattr(torch, arguments.dtype)
    with reading_checkpoint(arguments.model):
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        model: Any = load_model(arguments.model, device, dtype, arguments.int8, arguments.shortlist)
    options = {"max_tokens": arguments.max_tokens, "on_progress": progress}
    if arguments.length_penalty is not None:
        options["length_penalty"] = arguments.length_penalty
    lines = progress.counted(read_lines(arguments.files))
    if arguments.score is not None:
        for score in score_pairs(model, tokenizer, list(lines), list(read_lines([arguments.score])), **options):
            print(f"{score:.6f}", file=output)
        return
    limits = {} if arguments.max_new_tokens is None else {"max_new_tokens": arguments.max_new_tokens}
    results = translate_lines(
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
    for translations in results:
        progress.written += 1
        for translation in translations:
            score = f"{translation.score:.6f}\t" if arguments.scores else ""
            output.write(f"{score}{one_line(translation.text)}\n")
        output.flush()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=CommandHelp)
    parser.add_argument(
        "files", nargs="*", type=Path, help="source text, one sentence a line; default: standard input"
    )
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id")
    parser.add_argument("-o", "--output", type=Path, help="a file; default: standard output")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument("--beam", type=at_least_one, default=4, help="number of beams, 1 for greedy search")
    parser.add_argument("--n-best", type=at_least_one, default=1, help="number of translations of a line")
    parser.add_argument("--scores", action="store_true", help="write its score before each translation")
    parser.add_argument("--score", type=Path, metavar="TARGETS", help="score these translations instead")
    parser.add_argument("--length-penalty", type=finite_number, help="default: the model's setting, 1.0 for --score")
    parser.add_argument("--max-tokens", type=at_least_one, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument(
        "--max-new-tokens", type=at_least_one, help="limit for a translation; default: twice the source plus 50"
    )
    parser.add_argument("--window", type=at_least_one, default=1024, help="number of lines that are sorted by length")
    parser.add_argument("--int8", action="store_true", help="use quantize_for_cpu; a saved int8 model needs no option")
    parser.add_argument(
        "--shortlist",
        nargs="?",
        const=True,
        metavar="FILE",
        help="only words that are probable for the source, in int8: a file of make_shortlist.py, or without a value "
        "the one in the folder of the model",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar on standard error; default: only on a terminal",
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

                others = [Path(each) for each in (arguments.score, arguments.shortlist) if each not in (None, True)]
                sources = [*arguments.files, *others, Path(arguments.model)]
                output = stack.enter_context(new_file(arguments.output, sources, arguments.overwrite))
            run(arguments, output, progress)
            output.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. With /dev/null, Python's last flush does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"interrupted: {progress.summary(to_file) if progress else 'nothing was read'}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
