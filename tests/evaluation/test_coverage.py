import pytest

from hf_capsule_mt import Alignment, coverage_difference_ratio


def alignments(*lines):
    return [Alignment.parse(line) for line in lines]


def test_by_hand():
    references = alignments("0-0 1-1 1-2 2-2 3-4", "0-0 1-0", "", "5-1")
    translations = alignments("1-0 3-3 7-1", "0-1 1-1 2-0", "0-0", "")
    result = coverage_difference_ratio(references, translations)
    # Covered 1 and 3 of 0 to 3; all; the reference covers nothing; nothing covered.
    assert result.per_sentence == (0.5, 1.0, None, 0.0)
    assert result.ratio == pytest.approx(0.5) and str(result) == "CDR 0.5000"


def test_the_ratio_is_of_source_words_not_of_links():
    (one,) = coverage_difference_ratio(alignments("0-0 0-1 0-2 1-3"), alignments("0-9")).per_sentence
    assert one == 0.5


def test_possible_links_cover_nothing():
    result = coverage_difference_ratio(alignments("0-0 1p1 2-2", "0p0"), alignments("0-0 2p2", "0-0"))
    assert result.per_sentence == (0.5, None)


def test_the_order_of_the_two_matters():
    some, more = alignments("0-0"), alignments("0-0 1-1")
    assert coverage_difference_ratio(some, more).ratio == 1.0
    assert coverage_difference_ratio(more, some).ratio == 0.5


def test_clear_errors():
    with pytest.raises(ValueError, match="1 alignments of references and 2 of translations"):
        coverage_difference_ratio(alignments("0-0"), alignments("0-0", "1-1"))
    for nothing in ([], alignments("", "0p0")):
        with pytest.raises(ValueError, match="no coverage to compare with"):
            coverage_difference_ratio(nothing, nothing)
