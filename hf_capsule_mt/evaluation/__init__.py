"""Translating test sets, scores of translations, and measures of routings and capsules."""

from hf_capsule_mt.evaluation.alignments import Alignment, read_alignments, symmetrize
from hf_capsule_mt.evaluation.coverage import CoverageDifference, coverage_difference_ratio
from hf_capsule_mt.evaluation.decoding import translate
from hf_capsule_mt.evaluation.overlap import OverlapRates, overlap_rates
from hf_capsule_mt.evaluation.routing_statistics import assignment_entropy, capsule_diversity
from hf_capsule_mt.evaluation.scores import CorpusScores, corpus_scores
from hf_capsule_mt.evaluation.streaming import Translation, score_pairs, translate_lines
from hf_capsule_mt.evaluation.word_aligner import align_words

__all__ = [
    "Alignment",
    "CorpusScores",
    "CoverageDifference",
    "OverlapRates",
    "Translation",
    "align_words",
    "assignment_entropy",
    "capsule_diversity",
    "corpus_scores",
    "coverage_difference_ratio",
    "overlap_rates",
    "read_alignments",
    "score_pairs",
    "symmetrize",
    "translate",
    "translate_lines",
]
