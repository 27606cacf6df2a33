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


def run(arguments: argparse.Namespace, output: TextIO) -> None:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    import hf_capsule_mt  # noqa: F401  (its families become known)
    from hf_capsule_mt.evaluation.streaming import one_line, score_pairs, translate_lines

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    dtype = getattr(torch, arguments.dtype)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(arguments.model, dtype=dtype).to(arguments.device).eval()
    if arguments.int8:
        from hf_capsule_mt import quantize_for_cpu

        model = quantize_for_cpu(model)
    options = {"max_tokens": arguments.max_tokens}
    if arguments.length_penalty is not None:
        options["length_penalty"] = arguments.length_penalty
    if arguments.score is not None:
        sources, targets = list(read(arguments.files)), list(read([arguments.score]))
        for score in score_pairs(model, tokenizer, sources, targets, **options):
            print(f"{score:.6f}", file=output)
        return
    limits = {} if arguments.max_new_tokens is None else {"max_new_tokens": arguments.max_new_tokens}
    found = translate_lines(
        model,
        tokenizer,
        read(arguments.files),
        window=arguments.window,
        n_best=arguments.n_best,
        with_scores=arguments.scores,
        num_beams=arguments.beam,
        **options,
        **limits,
    )
    for translations in found:
        for translation in translations:
            text = one_line(translation.text)
            print(f"{translation.score:.6f}\t{text}" if arguments.scores else text, file=output)
        output.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="source text, a sentence a line; default: standard input")
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id")
    parser.add_argument("-o", "--output", type=Path, help="default: standard output")
    parser.add_argument("--beam", type=int, default=4, help="beams, 1 for greedy")
    parser.add_argument("--n-best", type=int, default=1, help="translations for a line")
    parser.add_argument("--scores", action="store_true", help="put each translation's score before it")
    parser.add_argument("--score", type=Path, metavar="TARGETS", help="score these translations instead")
    parser.add_argument("--length-penalty", type=float, help="default: what the model says, 1.0 for --score")
    parser.add_argument("--max-tokens", type=int, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument("--max-new-tokens", type=int, help="of a translation; default: twice the source and 50")
    parser.add_argument("--window", type=int, default=1024, help="lines that are sorted by length together")
    parser.add_argument("--int8", action="store_true", help="on a CPU, for the families of quantize_for_cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        with ExitStack() as stack:
            output: TextIO = sys.stdout
            if arguments.output is not None and arguments.output.resolve() in [
                path.resolve() for path in arguments.files
            ]:
                raise ValueError(f"{arguments.output} is read: name another output")
            if arguments.output is None:
                sys.stdout.reconfigure(encoding="utf-8")
            else:
                output = stack.enter_context(open(arguments.output, "w", encoding="utf-8"))
            run(arguments, output)
            output.flush()
    except BrokenPipeError:
        # Who reads has gone, `head` for one; nothing is left to be flushed when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
