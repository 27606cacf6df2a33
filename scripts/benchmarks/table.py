"""`benchmark.py table`: every row of every result in a folder, with the figures of the papers, as Markdown and a plot.

The folder's README.md is written from its JSON files only. Figures that no file contains are "not measured".
"""

import json
import re
from pathlib import Path

from benchmarks.rows import (
    GPU_COMMANDS,
    NOT_MEASURED,
    Results,
    axis_rows,
    fused_target_rows,
    length_rows,
    loss_rows,
    memory_rows,
    of_kind,
    op_rows,
    paper,
    run_rows,
    speed_rows,
    target_rows,
    trainer_rows,
)
from benchmarks.scaling import new_figure, save_figure

HEAD = """# Benchmarks

Written by `python scripts/benchmark.py table` from the JSON files of this folder. They contain the settings, versions
and command of each run. [LOG.md](LOG.md) says what was tried and expected.

Speed is the baseline's time divided by the row's time in the same run: above 1 is faster. Memory is the row's peak
divided by the baseline's. The figures of the papers, against their baselines and on their machines, are in their own
column or in square brackets. Times are medians, with the fastest and the slowest round in brackets. Runs named
`compiled` and those against other axes used the part of the package that is compiled for the CPU. Other runs on a CPU
did not. Runs named `bf16` are of one thread and in processor time. They miss three targets for training on a CPU;
LOG.md has the targets, the figures and what limits them.
"""


def read(folder: Path) -> Results:
    """The results by file name, in the order of their dates."""
    results = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return dict(sorted(results.items(), key=lambda item: (item[1]["date"], item[0])))


def table(columns: str, rows: list[list[str]]) -> str:
    """A Markdown table. Columns whose name starts with `>` are aligned to the right."""
    names = [name.strip() for name in columns.split("|")]
    marks = ["---:" if name.startswith(">") else "---" for name in names]
    lines = [[name.removeprefix(">") for name in names], marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


ON_A_GPU = f"""Base size, bfloat16, 32k target tokens a batch, beam 4 with batch 64; targets are in round brackets.
`HF_CAPSULE_MT_ROUTING=fused` switches on the Triton kernels; without it PyTorch's operations run, because no GPU has
yet shown the kernels to be faster. Run the commands in the repository's folder, with the package installed or
`PYTHONPATH=.`. `op` calls a function many times in a row. Check that it measures the kernels of EM and dynamic routing
and not the calls: a quarter of the positions (`--positions 8192 --no-memory`) must take a quarter of the time.
`scaling --axis` measures other axes, `memory` measures memory by batch and length.

```bash
python -m pytest -q tests/ops tests/modeling/test_fused_routing_models.py  # the kernels against the reference
export HF_CAPSULE_MT_ROUTING=fused
{chr(10).join(f"python scripts/benchmark.py {command} --device cuda" for command in GPU_COMMANDS)}
python scripts/benchmark.py table
```"""
MODES = ("train", "decode")
SECTIONS = (
    (
        "On a GPU, against the targets",
        ON_A_GPU,
        "|>training step|>decoding|>peak memory, training",
        target_rows,
    ),
    (
        "Fused routing on a GPU, against the targets",
        "32,768 positions, I = 6, O = 512, D = 1: at least 60 % of the copy's bandwidth and 10 times the reference.",
        "|>forward, of bandwidth|>forward, speed|>backward, of bandwidth|>backward, speed",
        fused_target_rows,
    ),
    (
        "Training step",
        "Sizes: batch x source → target tokens.",
        "model|>parameters|>ms|>speed|>paper|>memory|sizes|device|run",
        lambda results: speed_rows(results, "train"),
    ),
    (
        "Decoding",
        "A whole call of `generate()`. Source words are words of the vocabulary; `-shortlist` models write words of a "
        "random shortlist of the size of a real one.",
        "model|>parameters|>ms|>speed|>source words a second|>paper|>memory|sizes|device|run",
        lambda results: speed_rows(results, "decode"),
    ),
    (
        "Whole trainers",
        "Against the stock trainer with its own batches. Rows without a model's name use stock Marian.",
        "|>pairs a batch|>target tokens a second|>speed|>evaluation, speed|>padding|device|run",
        trainer_rows,
    ),
    (
        "Against length",
        "Milliseconds.",
        "model|encoder|step, by source|step, by number|sentence|device|run",
        length_rows,
    ),
    (
        "Against other axes",
        "Value: median milliseconds (speed: the inverse of the median and of the quartiles of the rounds' ratios).",
        "axis|model|step|values|device|run",
        axis_rows,
    ),
    ("Peak memory", "Batch x length: megabytes (ratio).", "model|what|sizes|device|run", memory_rows),
    (
        "Routing functions",
        "Megabytes and 10^9 operations are the minimum of a pass. The floor is the time that the machine needs for "
        "them, with the copy bandwidth and the multiply-adds of float32 products measured in the same run. Speed is "
        "against the reference.",
        "function|pass|>ms|>MB|>operations|>floor, ms|>gap|>of bandwidth, of rate|>speed|device|run",
        op_rows,
    ),
    (
        "Losses over the vocabulary",
        "A step forward and backward, against the first implementation of each loss.",
        "loss|>ms|>speed|>peak, MB|sizes|device|run",
        loss_rows,
    ),
    ("Runs", "", "run|date|commit|versions|command", run_rows),
)


def render(folder: Path) -> str:
    results = read(folder)
    parts = [HEAD, "![Speeds](speeds.png)\n"]
    for title, text, columns, rows_of in SECTIONS:
        rows = rows_of(results)
        body = table(columns, rows) if rows else f"{NOT_MEASURED.capitalize()}.\n"
        parts.append(f"## {title}\n\n{f'{text}{chr(10)}{chr(10)}' if text else ''}{body}")
    return "\n".join(parts)


def short(device: str) -> str:
    """A device's name without trade marks and clock, as a label."""
    return re.sub(r"\((?:R|TM)\)|(?: CPU| Processor)?(?: @[^,]*)?(?=,|$)", "", device).replace("1 threads", "1 thread")


def plot(folder: Path) -> None:
    """Draw every speed of training and decoding, with the paper's speed."""
    results = read(folder)
    longest = max(sum(len(result["rows"]) - 1 for result in of_kind(results, mode).values()) for mode in MODES)
    figure = new_figure(12, 1.5 + 0.16 * longest)
    for axes, mode in zip(figure.subplots(1, 2), MODES, strict=True):
        bars = [
            (
                f"{model}, {short(result['device'])}, {name.removesuffix('.json')}",
                model,
                1 / row["time_ratio"],
                result["settings"]["baseline"],
            )
            for name, result in of_kind(results, mode).items()
            for model, row in result["rows"].items()
            if model != result["settings"]["baseline"]
        ]
        places = range(len(bars))
        axes.barh(places, [speed for _, _, speed, _ in bars], color="C0", height=0.6, label="here")
        reported = [(place, paper(bar[1], bar[3], mode)) for place, bar in enumerate(bars)]
        dots = [(float(value), place) for place, value in reported if value != "–"]
        axes.plot([x for x, _ in dots], [y for _, y in dots], "kD", markersize=5, label="the papers")
        axes.axvline(1.0, color="0.5", linewidth=0.8)
        axes.set_yticks(places, [f"{label}, against {base}" for label, _, _, base in bars], fontsize=6)
        axes.set_ylim(-0.7, len(bars) - 0.3)
        axes.invert_yaxis()
        axes.set_title("speed of a training step" if mode == "train" else "speed of decoding")
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.05), ncols=2, frameon=False)
    save_figure(figure, folder / "speeds.png")


def write(folder: Path) -> None:
    (folder / "README.md").write_text(render(folder))
    plot(folder)
    print(f"written to {folder / 'README.md'}, drawn in {folder / 'speeds.png'}")
