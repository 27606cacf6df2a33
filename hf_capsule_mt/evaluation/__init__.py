"""Translating test sets, scoring translations, and what routings look like in numbers."""

from hf_capsule_mt.evaluation.decoding import translate
from hf_capsule_mt.evaluation.routing_statistics import assignment_entropy, capsule_diversity
from hf_capsule_mt.evaluation.scores import CorpusScores, corpus_scores

__all__ = ["CorpusScores", "assignment_entropy", "capsule_diversity", "corpus_scores", "translate"]
