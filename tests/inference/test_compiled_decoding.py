"""`generate()` with a static cache compiles one step, for every family and in beam search too, and nothing changes."""

import copy
from typing import Any

import pytest
import torch
from family_cases import (
    AGGREGATED_MARIAN,
    CAPS_NMT,
    GDR_MARIAN,
    PAD,
    RICHEST,
    Case,
    each_of,
    make_pairs,
    without_target,
)
from markers import exhaustive
from torch import Tensor
from transformers import CompileConfig, EncoderDecoderCache, StaticCache

from hf_capsule_mt.inference.search import compiled as compiled_decoding
from hf_capsule_mt.modeling import translation_head
from hf_capsule_mt.modeling.input_checks import target_word_mask
from hf_capsule_mt.modeling.recurrent import seq2seq as recurrent_seq2seq
from hf_capsule_mt.modeling.recurrent.cache import CAN_COMPILE_STEPS, RecurrentCache

compiles = pytest.mark.skipif(not CAN_COMPILE_STEPS, reason="compiled steps need PyTorch 2.11")

BEAMS = {"num_beams": 3, "num_return_sequences": 2}
TWO_VOCABULARIES = Case(AGGREGATED_MARIAN, "two_vocabularies")
# The first has the most parts. GDR's has all parts of Marian's, and CapsNMT's a recurrent decoder with attention.
one_case_a_family = each_of(RICHEST, [Case(GDR_MARIAN, GDR_MARIAN.chosen[0]), Case(CAPS_NMT, CAPS_NMT.chosen[0])])


def kept_by(cache: Any) -> frozenset[int]:
    """Where a static cache keeps what every step changes."""
    if isinstance(cache, RecurrentCache):
        kept = [*(cache.states or ()), cache.get_seq_length()]
    else:
        layers = cache.self_attention_cache.layers
        kept = [tensor for layer in layers for tensor in (layer.keys, layer.values, layer.cumulative_length)]
    return frozenset(tensor.data_ptr() for tensor in kept)


class Compiler:
    """A backend for `torch.compile` that counts graphs and runs them as they are; like a CUDA graph, it allows no
    tensor that outlives a step to move."""

    def __init__(self) -> None:
        self.graphs = 0
        self.addresses: list[frozenset[int]] = []

    def __deepcopy__(self, memo: Any) -> "Compiler":
        return self  # `generate` copies its settings

    def __call__(self, graph: Any, examples: Any) -> Any:
        self.graphs += 1

        def run(*inputs: Tensor) -> Any:
            versions = [(tensor, tensor._version) for tensor in inputs if isinstance(tensor, Tensor)]
            actual = graph.forward(*inputs)
            changed = [tensor for tensor, version in versions if tensor._version != version]
            assert all(hasattr(tensor, "_dynamo_static_input_type") for tensor in changed)
            self.addresses.append(frozenset(tensor.data_ptr() for tensor in changed))
            return actual

        return run

    def settings(self) -> dict[str, Any]:
        config = CompileConfig(fullgraph=True, backend=self, mode="default")
        config._compile_all_devices = True
        return {"cache_implementation": "static", "compile_config": config}


def inputs_of(case: Case, seed: int = 0) -> dict[str, Tensor]:
    return without_target(make_pairs(case.config(), seed=seed).batch())


def started(case: Case) -> tuple[Any, dict[str, Tensor], Compiler]:
    """A model, what to translate, and a compiler that has compiled nothing yet."""
    torch._dynamo.reset()
    return case.build(**case.family.shallow), inputs_of(case), Compiler()


@compiles
@one_case_a_family
@pytest.mark.parametrize("search", [exhaustive({}), BEAMS], ids=["greedy", "beams"])
def test_one_graph_serves_every_step(case: Case, search: dict[str, Any]) -> None:
    model, inputs, compiler = started(case)
    expected = model.generate(**inputs, **search)
    result = model.generate(**inputs, **search, **compiler.settings(), return_dict_in_generate=True)
    actual = result.sequences
    assert torch.equal(actual, expected)
    assert compiler.graphs == 1
    # All steps but the first, which is not compiled.
    assert len(compiler.addresses) >= actual.shape[1] - 2 > 2
    assert set(compiler.addresses) == {kept_by(result.past_key_values)}, "the states of a step lie where they lay"
    # Another sentence of the same length: the same graph.
    ids = inputs["input_ids"].flip(0)
    other = {**inputs, "input_ids": ids, "attention_mask": inputs["attention_mask"].flip(0)}
    assert torch.equal(model.generate(**other, **search, **compiler.settings()), model.generate(**other, **search))
    assert compiler.graphs == 1


@compiles
@one_case_a_family
def test_a_prefix_with_a_mask_is_one_graph_too(case: Case) -> None:
    model, inputs, compiler = started(case)
    inputs["decoder_input_ids"] = torch.tensor([[PAD, 7, 9], [PAD, 8, 7], [PAD, 9, 11]])
    inputs["decoder_attention_mask"] = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 1]])
    expected = model.generate(**inputs)
    assert torch.equal(model.generate(**inputs, **compiler.settings()), expected)
    assert compiler.graphs == 1 and len(compiler.addresses) > 2


@compiles
@pytest.mark.parametrize("old", [False, True])
def test_two_vocabularies(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old releases of Transformers take the number of target words from the source's: beam search works around it."""
    monkeypatch.setattr(translation_head, "OLD_BEAM_SEARCH", old or translation_head.OLD_BEAM_SEARCH)
    model, inputs, compiler = started(TWO_VOCABULARIES)
    expected = model.generate(**inputs, **BEAMS)
    assert torch.equal(model.generate(**inputs, **BEAMS, **compiler.settings()), expected)
    assert compiler.graphs == 1 and len(compiler.addresses) > 2


@compiles
@pytest.mark.parametrize("search", [{}, BEAMS], ids=["greedy", "beams"])
def test_a_deep_copy_decodes_with_its_own_weights(search: dict[str, Any]) -> None:
    model, inputs, compiler = started(Case(CAPS_NMT, CAPS_NMT.chosen[0]))
    before = model.generate(**inputs, **search, **compiler.settings())
    other, steps = copy.deepcopy(model), len(compiler.addresses)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.flip(0))
    expected = other.generate(**inputs, **search)
    assert torch.equal(other.generate(**inputs, **search, **compiler.settings()), expected)
    assert len(compiler.addresses) > steps > 2 and expected.tolist() != before.tolist()


@one_case_a_family
def test_older_releases_compile_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compiled_decoding, recurrent_seq2seq):
        monkeypatch.setattr(module, "CAN_COMPILE_STEPS", False)
    model, inputs, compiler = started(case)
    expected = model.generate(**inputs, **BEAMS)
    assert torch.equal(model.generate(**inputs, **BEAMS, **compiler.settings()), expected)
    assert compiler.graphs == 0


@pytest.mark.parametrize("asked", [None, "dynamic", "static"])
def test_older_releases_say_that_a_recurrent_cache_is_not_static(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(recurrent_seq2seq, "CAN_COMPILE_STEPS", False)
    monkeypatch.setattr(recurrent_seq2seq.logger, "warning_once", said.append)
    model = Case(CAPS_NMT, CAPS_NMT.chosen[0]).build()
    model.generate(torch.full((1, 3), 5), max_new_tokens=2, cache_implementation=asked)
    assert said == ['cache_implementation="static" needs PyTorch 2.11 and is ignored'] * (asked == "static")


def test_beam_search_compiles_no_cache_that_moves_and_nothing_whose_outputs_are_kept() -> None:
    model, inputs, compiler = started(Case(AGGREGATED_MARIAN, "em"))
    expected = model.generate(**inputs, **BEAMS)
    settings = compiler.settings()
    kept = {"return_dict_in_generate": True, "output_hidden_states": True}
    assert torch.equal(model.generate(**inputs, **BEAMS, **settings, **kept).sequences, expected)
    del settings["cache_implementation"]
    lengths = (model.generation_config.max_length, inputs["input_ids"].shape[1])
    own = EncoderDecoderCache(*(StaticCache(model.config, max_cache_len=length) for length in lengths))
    assert torch.equal(model.generate(**inputs, **BEAMS, **settings, past_key_values=own), expected)
    assert compiler.graphs == 0


@compiles
@one_case_a_family
def test_nothing_is_left_of_a_compiled_search(case: Case) -> None:
    model, inputs, compiler = started(case)
    before = model.generate(**inputs, **BEAMS)
    model.generate(**inputs, **BEAMS, **compiler.settings())
    steps = len(compiler.addresses)
    assert torch.equal(model.generate(**inputs, **BEAMS), before)
    model(**make_pairs(case.config()).batch())
    assert len(compiler.addresses) == steps > 0
    assert model._compiled_call_impl is None and "_prefill" not in vars(model)


def test_a_static_cache_of_states() -> None:
    """The states after every step, in the same tensors, and as many as there are sentences."""
    cache = RecurrentCache(static=True)
    assert cache.is_compileable and cache.get_seq_length() == 0
    first = (torch.tensor([[1.0], [2.0]]),) * 2
    cache.append([first])
    states = cache.states
    assert states is not None and states[0].data_ptr() != states[1].data_ptr() != first[0].data_ptr()
    cache.append([(torch.tensor([[3.0], [4.0]]), torch.tensor([[5.0], [6.0]]))], count=2)
    assert cache.get_seq_length() == 3
    cache.reorder_cache(torch.tensor([1, 1]))
    assert all(now is before for now, before in zip(cache.states or (), states, strict=True))
    assert states[0].tolist() == [[4.0], [4.0]] and states[1].tolist() == [[6.0], [6.0]]
    assert first[0].tolist() == [[1.0], [2.0]], "a caller's tensor was written to"
    cache.batch_repeat_interleave(2)
    assert cache.layer.batch_size == 4 and cache.get_seq_length() == 3
    cache.reset()
    assert cache.states is None and cache.get_seq_length() == 0


def test_a_static_cache_keeps_full_precision_under_autocast() -> None:
    cache = RecurrentCache(static=True)
    with torch.autocast("cpu", torch.bfloat16):
        cache.append([(torch.ones(1, 2, dtype=torch.bfloat16),)])
    third = torch.full((1, 2), 1 / 3)
    cache.append([(third,)])
    assert cache.states is not None and torch.equal(cache.states[0], third)


@pytest.mark.parametrize("static", [{}, {"cache_implementation": "static"}], ids=["", "static"])
def test_a_mask_longer_than_the_prefix_is_named(static: dict[str, Any]) -> None:
    case = Case(CAPS_NMT, CAPS_NMT.chosen[0])
    words = torch.tensor([[PAD, 7]] * 3)
    prefix = {"decoder_input_ids": words, "decoder_attention_mask": torch.ones(3, 4)}
    with pytest.raises(ValueError, match="decoder_attention_mask has shape .3, 4.: must be .3, 2."):
        case.build(**case.family.shallow).generate(**inputs_of(case), **prefix, **static)


@pytest.mark.parametrize("length", [3, 7, 9])
def test_a_mask_of_a_wrong_length_is_named(length: int) -> None:
    cache = RecurrentCache(static=True)
    cache.append([(torch.zeros(2, 3),)] * 4)
    assert target_word_mask(torch.ones(2, 5), 2, 1, cache.get_seq_length()) is not None
    with pytest.raises(ValueError, match=r"decoder_attention_mask has shape \[2, \d\]: must be \[2, 5\]"):
        target_word_mask(torch.ones(2, length), 2, 1, cache.get_seq_length())


def test_steps_that_are_recorded_are_not_written_over() -> None:
    cache = RecurrentCache(static=True)
    cache.append([(torch.tensor([[1.0]]),)])
    cache.activate_past_recording()
    assert not cache.is_compileable
    cache.append([(torch.tensor([[2.0]]),), (torch.tensor([[3.0]]),)])
    cache.crop(-2)
    assert cache.states is not None and cache.states[0].tolist() == [[1.0]] and cache.get_seq_length() == 1
