"""The ten probing tasks of Conneau et al. (2018), and the accuracies of Table 1, HEADS."""

from typing import NamedTuple

LEVELS = ("surface", "syntactic", "semantic")
PAPER_MODELS = ("base", "simple", "em")  # rows of Table 1, HEADS


class ProbingTask(NamedTuple):
    """One task.

    Args:
        name: as in Table 1, HEADS.
        file: SentEval's name of the file, without `.txt`.
        level: one of `LEVELS`, as the paper groups the tasks.
        question: what the classifier has to tell.
        paper: accuracy in percent of the base, simple-routing and EM-routing probe in Table 1, HEADS.
    """

    name: str
    file: str
    level: str
    question: str
    paper: tuple[float, float, float]


TASKS = (
    ProbingTask("SeLen", "sentence_length", "surface", "number of words, in bins", (97.22, 97.10, 96.26)),
    ProbingTask("WC", "word_content", "surface", "which of 1,000 words it contains", (97.92, 98.85, 98.75)),
    ProbingTask("TrDep", "tree_depth", "syntactic", "depth of its parse tree", (44.48, 43.37, 47.72)),
    ProbingTask("ToCo", "top_constituents", "syntactic", "constituents below its root", (84.44, 86.15, 87.00)),
    ProbingTask("BShif", "bigram_shift", "syntactic", "whether two neighbours were swapped", (49.30, 49.87, 51.82)),
    ProbingTask("Tense", "past_present", "semantic", "tense of its main verb", (84.20, 88.22, 88.17)),
    ProbingTask("SubNm", "subj_number", "semantic", "number of its subject", (87.66, 87.25, 89.97)),
    ProbingTask("ObjNm", "obj_number", "semantic", "number of its object", (82.94, 85.07, 86.40)),
    ProbingTask("SOMO", "odd_man_out", "semantic", "whether a word was replaced", (50.24, 48.77, 51.55)),
    ProbingTask(
        "CoIn", "coordination_inversion", "semantic", "whether two clauses changed places", (68.77, 69.12, 69.86)
    ),
)


def task_named(name: str) -> ProbingTask:
    """The task with this short name or file name, in any case. Raises a ValueError for another name."""
    for task in TASKS:
        if name.lower() in (task.name.lower(), task.file):
            return task
    raise ValueError(f"task {name!r}: must be one of {', '.join(task.name for task in TASKS)}")
