r"""Write a training corpus as a teacher translates it, for a student to learn from.

    python scripts/train.py multi30k/marian --output_dir runs/teacher
    accelerate launch --num_processes 4 scripts/distill.py --teacher runs/teacher --corpus data/multi30k/train \
        --output data/distilled/train --beam 8 --length-penalty 0.8
    python scripts/train.py multi30k/caps_nmt --output_dir runs/student \
        --train data/distilled/train --tokenizer runs/teacher

The teacher is any model for `AutoModelForSeq2SeqLM`; the student need not share its tokenizer. Stopped in any way,
the same command goes on where it was, with as many processes as you like, one without `accelerate launch`. On CPUs
`accelerate launch --cpu` starts one, whatever their number; `torchrun --nproc-per-node 4` starts four. The report is
in `data/distilled/train.distill.json`.
"""

import argparse
import sys
from pathlib import Path

from command_line import at_least_one, finite_number, run_command, usable_device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="checkpoint folder or Hub id")
    parser.add_argument("--corpus", required=True, help="data/train for data/train.en and data/train.de, synthetic:N")
    parser.add_argument("--output", required=True, type=Path, help="prefix of the files to write")
    parser.add_argument("--source", default="en", help="language of the corpus, and ending of its file")
    parser.add_argument("--target", default="de")
    parser.add_argument("--beam", type=at_least_one, default=4, help="beams, 1 for greedy")
    parser.add_argument("--length-penalty", type=finite_number, help="default: what the teacher says")
    parser.add_argument(
        "--max-new-tokens", type=at_least_one, help="of a translation; default: twice the source and 50"
    )
    parser.add_argument("--max-tokens", type=at_least_one, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument("--shard-size", type=at_least_one, help="lines; default: 8192, fewer for a small corpus")
    parser.add_argument("--prefix", default="", help="put before every source, '>>deu<< ' for instance")
    parser.add_argument(
        "--teacher-languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="what a multilingual teacher calls them, eng_Latn deu_Latn for NLLB",
    )
    parser.add_argument("--repair", action="store_true", help="of the corpus, what cannot be read as it is")
    parser.add_argument("--overwrite", action="store_true", help="start from nothing, whatever is there")
    parser.add_argument("--device", help="default: what accelerate gives each process")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    arguments = vars(parser.parse_args())

    from accelerate import PartialState

    from hf_capsule_mt.checkpoint_names import check_checkpoint
    from hf_capsule_mt.training.distillation import Distillation
    from hf_capsule_mt.training.processes import close_process_group

    overwrite, languages = arguments.pop("overwrite"), arguments.pop("teacher_languages")
    try:
        check_checkpoint(arguments["teacher"])
        if arguments["device"] is not None:
            usable_device(arguments["device"])
        distillation = Distillation(**arguments, teacher_languages=languages and tuple(languages))
        report = distillation.run(overwrite, show_progress=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if PartialState().is_main_process:
        for name, value in report.items():
            print(f"{name}: {value}")
    close_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, "what was translated is kept; the same command goes on from there"))
