"""Log-probabilities of given translations, and samples that have them: for every family."""

from typing import Any

import pytest
import torch
from families import Case
from markers import exhaustive
from sentence_pairs import END, PAD, assert_same_gradients
from toy_translation import FAMILIES, LIMIT, MASK, SOURCES, all_translations, log_probabilities, toy_model

from hf_capsule_mt.modeling.translation_loop import evaluation_mode
from hf_capsule_mt.training.objectives.log_probabilities import states_are_enough
from hf_capsule_mt.training.objectives.model_access import encode
from hf_capsule_mt.training.objectives.random_numbers import sentence_numbers
from hf_capsule_mt.training.objectives.sampling import Sampler, drawn

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
marian_first = pytest.mark.parametrize("family", [FAMILIES[0], *map(exhaustive, FAMILIES[1:])], ids=str)


@every_family
def test_the_probabilities_of_all_translations_sum_to_one(family: str | Case):
    """With those that stop at the limit. The padding token takes no part of the probability."""
    model = toy_model(family)
    for sentence in (0, 1):
        values = log_probabilities(model, all_translations(), sentence)
        assert values.exp().sum().item() == pytest.approx(1.0, abs=1e-9)


@every_family
def test_a_batch_has_the_probabilities_of_single_sentences(family: str | Case):
    """Padding of the source and of the other translations changes nothing."""
    model, translations = toy_model(family), [(2, 3, END), (3, END), (2, 2, 3)]
    together = log_probabilities(model, translations, 1)
    for words, value in zip(translations, together, strict=True):
        source = {"input_ids": SOURCES[1:, :3], "attention_mask": MASK[1:, :3]}
        logits = model(**source, decoder_input_ids=torch.tensor([[PAD, *words[:-1]]])).logits[0].double()
        logits[:, PAD] = -torch.inf
        expected = logits.log_softmax(dim=-1)[range(len(words)), list(words)].sum()
        assert value.item() == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("marian", torch.float64),
        ("marian", torch.float32),
        *((family, torch.float64) for family in FAMILIES[1:]),
        *(exhaustive(family, torch.float32) for family in FAMILIES[1:]),
    ],
    ids=str,
)
def test_without_the_scores_of_all_words_gradients_are_the_same(family: str | Case, dtype: torch.dtype):
    """The quick way, from states, against the plain one, from logits. A hook on the model asks for the plain one."""
    quick, plain = toy_model(family, dtype), toy_model(family, dtype)
    plain.register_forward_hook(lambda module, args, outputs: None)
    assert states_are_enough(quick) and not states_are_enough(plain)
    weights = torch.linspace(-1, 1, 15, dtype=dtype)
    totals = []
    for model in (quick, plain):
        values = log_probabilities(model, all_translations())
        (values * weights).sum().backward()
        totals.append(values.detach())
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(totals[0], totals[1], rtol=tolerance, atol=tolerance)
    assert_same_gradients(quick, plain, tolerance)


def draw(model: Any, samples: int, step: int = 0, budget: int | None = None, limit: int = LIMIT) -> Any:
    """Samples of both sources."""
    numbers = [sentence_numbers(5, step, source, [2], samples, limit) for source in SOURCES.tolist()]
    with evaluation_mode(model), torch.no_grad():
        encoded = encode(model, {"input_ids": SOURCES, "attention_mask": MASK})
    return Sampler(budget).samples(model, encoded, MASK, [limit, limit], numbers)


@every_family
def test_samples_have_the_probabilities_of_the_model(family: str | Case):
    """Seed 5: each frequency of 2,000 samples lies within five standard deviations."""
    model, count = toy_model(family, torch.float32), 2_000
    with torch.no_grad():
        expected = [log_probabilities(model, all_translations(), sentence).exp() for sentence in (0, 1)]
    assert model.generation_config.forced_eos_token_id == (END if family == "marian" else None)
    for samples, probabilities in zip(draw(model, count), expected, strict=True):
        assert set(samples) <= {*all_translations()}
        frequencies = torch.tensor([samples.count(words) / count for words in all_translations()])
        deviations = (probabilities * (1 - probabilities) / count).sqrt()
        assert ((frequencies - probabilities).abs() <= 5 * deviations + 1e-9).all()
        assert (probabilities > 0.02).sum() > 2
    assert model.training and model.generation_config.max_new_tokens is None


@marian_first
def test_blocks_and_the_step(family: str | Case):
    """However the rows are split into blocks, samples are the same; another step has others."""
    model = toy_model(family, torch.float32)
    whole = draw(model, 8)
    assert draw(model, 8, budget=2 * (4 + LIMIT)) == whole
    assert draw(model, 8, step=1) != whole


def test_sampling_leaves_the_random_numbers_of_training_alone():
    model = toy_model("marian", dropout=0.5)
    state = torch.get_rng_state()
    first = draw(model, 4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert draw(model, 4) == first, "dropout is off"


def test_a_longer_limit_draws_the_same_beginnings():
    model = toy_model("marian")
    for short, long in zip(draw(model, 30, limit=2), draw(model, 30, limit=5), strict=True):
        assert [words[:2] for words in long] == [words[:2] for words in short]
        assert any(len(words) > 2 for words in long)


def test_greedy_translations_are_those_of_the_model():
    model = toy_model("marian")
    with evaluation_mode(model), torch.no_grad():
        encoded = encode(model, {"input_ids": SOURCES, "attention_mask": MASK})
    translations = Sampler(None).greedy(model, encoded, MASK, [4, 4])
    model.eval().generation_config.forced_eos_token_id = None
    options = {"max_new_tokens": 4, "bad_words_ids": [[PAD]], "num_beams": 1, "do_sample": False}
    expected = model.generate(input_ids=SOURCES, attention_mask=MASK, **options)[:, 1:].tolist()
    for words, row in zip(translations, expected, strict=True):
        assert row[: len(words)] == list(words) and (len(words) == 4 or words[-1] == END)


def test_numbers_choose_words_by_their_cumulative_probability():
    scores = torch.tensor([[0.5, 0.0, 0.3, 0.2]]).log().expand(6, -1)
    numbers = torch.tensor([0.0, 0.49, 0.51, 0.79, 0.81, 1 - 2**-24])
    assert drawn(scores, numbers).tolist() == [0, 0, 2, 2, 3, 3]
    last_impossible = torch.tensor([[0.0, -torch.inf]])
    assert drawn(last_impossible, torch.tensor([1 - 2**-24])).tolist() == [0]


def test_numbers_depend_on_all_that_they_are_drawn_for():
    first = sentence_numbers(1, 2, [3, 4], [5], 3, 4)
    assert first.shape == (3, 4) and len(first.flatten().unique()) == 12
    torch.testing.assert_close(sentence_numbers(1, 2, [3, 4], [5], 3, 9)[:, :4], first)
    others = [(0, 2, [3, 4], [5]), (1, 3, [3, 4], [5]), (1, 2, [4, 3], [5]), (1, 2, [3, 4], [6]), (1, 2, [3], [4, 5])]
    for changed in others:
        assert not torch.equal(sentence_numbers(*changed, 3, 4), first), changed
