"""BLEU from counts of single sentences, so that scores of many samples and groups of sentences cost little.

Legend: `N` sentences, `K` = 2 lengths and 2 counts for each of four orders of n-grams.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
ORDERS = 4


def bleu_counts(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], on_progress: Callable[[int], object] | None = None
) -> tuple[Counts, str]:
    """The counts of each sentence `[N, K]`, by sacreBLEU, and the signature of BLEU.

    `references` has one or several lists, each with a reference for every sentence. A row has the length of the
    translation and of its reference, then the correct n-grams of each order, then all n-grams.
    """
    from sacrebleu.metrics import BLEU

    bleu = BLEU()
    rows = np.empty((len(hypotheses), 2 + 2 * ORDERS), dtype=np.int64)
    for index, hypothesis in enumerate(hypotheses):
        score = bleu.corpus_score([hypothesis], [[texts[index]] for texts in references])
        rows[index] = [score.sys_len, score.ref_len, *score.counts, *score.totals]
        if on_progress is not None:
            on_progress(1)
    return rows, str(bleu.get_signature())


def corpus_bleu(counts: Counts) -> float:
    """BLEU, 0 to 100, of a corpus with these sums of counts `[K]`."""
    from sacrebleu.metrics import BLEU

    correct, total = counts[2 : 2 + ORDERS].tolist(), counts[2 + ORDERS :].tolist()
    return float(BLEU.compute_bleu(correct, total, int(counts[0]), int(counts[1]), "exp").score)


def reference_lists(references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """One list of references, or several, as a list of lists."""
    several = len(references) > 0 and not isinstance(references[0], str)
    lists: list[list[str]] = [list(texts) for texts in references] if several else [list(references)]  # type: ignore[arg-type]
    return lists
