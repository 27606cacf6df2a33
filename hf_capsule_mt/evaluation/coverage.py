"""The coverage difference ratio: of the source words that a reference covers, the share that a translation covers."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hf_capsule_mt.evaluation.alignments import Alignment


@dataclass(frozen=True)
class CoverageDifference:
    """The mean over sentences, and the ratio of each sentence; None if its reference covers no source word."""

    ratio: float
    per_sentence: tuple[float | None, ...]

    def __str__(self) -> str:
        return f"CDR {self.ratio:.4f}"


def coverage_difference_ratio(
    reference_alignments: Sequence[Alignment], translation_alignments: Sequence[Alignment]
) -> CoverageDifference:
    """`CDR = 1 - |C_ref \\ C_gen| / |C_ref|` (Kong et al. 2019; section 4.3, GDR), mean over sentences.

    `C_ref` and `C_gen` are the source words that the reference and the translation cover: words with a sure link. The
    ratio is 1 if the translation covers every word that the reference covers. It may cover more. The ratio is 0 if it
    covers none of them. The mean leaves out sentences whose reference covers nothing.

    Both alignments must have the same sources, split into the same words. Make them in one run of one aligner:

        aligned = align_words(sources + sources, references + translations)
        coverage_difference_ratio(aligned[: len(sources)], aligned[len(sources) :])
    """
    if len(reference_alignments) != len(translation_alignments):
        raise ValueError(
            f"{len(reference_alignments)} alignments of references and {len(translation_alignments)} of translations: "
            "the numbers must be equal"
        )
    ratios: list[float | None] = []
    for reference, translation in zip(reference_alignments, translation_alignments, strict=True):
        covered, missed = reference.covered_sources, reference.covered_sources - translation.covered_sources
        ratios.append(1 - len(missed) / len(covered) if covered else None)
    counted = [ratio for ratio in ratios if ratio is not None]
    if not counted:
        raise ValueError("no reference alignment has a sure link: there is no coverage to compare with")
    return CoverageDifference(fmean(counted), tuple(ratios))
