"""What is special about the RNMT: its cache, its encoder's output, its errors."""

import copy
from typing import Any

import pytest
import torch
from family_cases import END, PAD, assert_close, make_pairs, spread_weights, without_labels, without_target
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from hf_capsule_mt import GDRRNMTConfig, GDRRNMTForConditionalGeneration
from hf_capsule_mt.configuration.configuration_gdr_rnmt import RNMT_PAST_FUTURES
from hf_capsule_mt.modeling.recurrent_cache import RecurrentCache

SIZES = {
    "vocab_size": 47,
    "d_model": 16,
    "recurrent_dim": 10,
    "attention_dim": 14,
    "encoder_layers": 2,
    "decoder_ffn_dim": 18,
    "capsule_dim": 5,
    "dropout": 0.0,
    "init_std": 0.2,
    "eos_token_id": END,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "forced_eos_token_id": None,
}
every_kind = pytest.mark.parametrize("kind", RNMT_PAST_FUTURES)


def build(kind: str = "guided_routing", **changes: Any) -> GDRRNMTForConditionalGeneration:
    torch.manual_seed(5)
    model = GDRRNMTForConditionalGeneration(GDRRNMTConfig(**{**SIZES, "past_future": kind, **changes}))
    spread_weights(model, 1.5)
    model.generation_config.bad_words_ids = [[PAD]]
    model.generation_config.max_length = 12
    return model.eval()


def batch_of(model: Any) -> dict[str, Tensor]:
    return without_labels(make_pairs(model.config).batch())


def scores_after(model: Any, inputs: dict[str, Tensor], cache: RecurrentCache, word: int) -> Tensor:
    """The logits of one more step; the cache is left as it was."""
    ids = torch.full((len(inputs["input_ids"]), 1), word)
    with torch.no_grad():
        return model(**inputs, decoder_input_ids=ids, past_key_values=copy.deepcopy(cache)).logits


@every_kind
def test_cache_operations_against_decoding_from_scratch(kind: str) -> None:
    model = build(kind)
    batch = batch_of(model)
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    target = batch["decoder_input_ids"].masked_fill(batch["decoder_input_ids"] == PAD, 9)
    cache = RecurrentCache()
    cache.activate_past_recording()

    def read(words: Tensor) -> None:
        with torch.no_grad():
            model(**source, decoder_input_ids=words, past_key_values=cache)

    def check() -> None:
        assert cache.get_seq_length() == target.shape[1]
        with torch.no_grad():
            whole = torch.cat([target, torch.full((len(target), 1), 7)], dim=1)
            wanted = model(**source, decoder_input_ids=whole).logits[:, -1:]
        assert_close(scores_after(model, source, cache, 7), wanted)

    def select(rows: Tensor) -> None:
        nonlocal source, target
        source, target = {name: value[rows] for name, value in source.items()}, target[rows]

    read(target)
    check()
    order = torch.tensor([2, 2, 0])
    cache.reorder_cache(order)
    select(order)
    check()
    cache.batch_repeat_interleave(2)
    select(torch.arange(3).repeat_interleave(2))
    check()
    more = torch.arange(12).view(6, 2) + 5
    read(more)
    target = torch.cat([target, more], dim=1)
    check()
    rows = torch.tensor([5, 1, 0, 3])
    cache.batch_select_indices(rows)
    select(rows)
    check()
    cache.crop(-4)
    target = target[:, :-4]
    check()
    cache.crop(-target.shape[1])
    target = target[:, :0]
    check()
    cache.reset()
    check()


def test_a_step_costs_the_same_at_any_length() -> None:
    model = build()
    batch = batch_of(model)
    batch.pop("decoder_attention_mask")
    with torch.no_grad():
        cache = model(**batch, use_cache=True).past_key_values
        sizes = [state.numel() for state in cache.states]
        for _ in range(5):
            model(**{**batch, "decoder_input_ids": torch.full((3, 1), 4)}, past_key_values=cache)
    assert [state.numel() for state in cache.states] == sizes and cache.layer.past == []
    assert cache.get_seq_length() == batch["decoder_input_ids"].shape[1] + 5


@every_kind
def test_going_on_from_a_returned_cache(kind: str) -> None:
    model = build(kind)
    model.generation_config.eos_token_id = None
    inputs = without_target(make_pairs(model.config).batch())
    whole = model.generate(**inputs, max_length=12)
    first = model.generate(**inputs, max_length=6, return_dict_in_generate=True)
    assert type(first.past_key_values) is RecurrentCache
    rest = model.generate(
        **inputs,
        decoder_input_ids=first.sequences,
        decoder_attention_mask=torch.ones_like(first.sequences),
        past_key_values=first.past_key_values,
        max_length=12,
    )
    assert torch.equal(rest, whole)


def test_a_given_empty_cache_is_used() -> None:
    model, cache = build(), RecurrentCache()
    inputs = without_target(make_pairs(model.config).batch())
    expected = model.generate(**inputs, num_beams=2)
    assert torch.equal(model.generate(**inputs, num_beams=2, past_key_values=cache), expected)
    assert cache.get_seq_length() > 0 and cache.batch_size == 6


def test_caches_that_do_not_fit() -> None:
    model = build()
    batch = batch_of(model)
    cache = model(**batch, use_cache=True).past_key_values
    fewer = {name: value[:2] for name, value in batch.items()}
    with pytest.raises(ValueError, match="past_key_values holds the states of 3 sentences .* decoder input has 2"):
        model(**fewer, past_key_values=cache)
    inputs = without_target(make_pairs(model.config).batch())
    with pytest.raises(ValueError, match="past_key_values holds the states of 3 sentences .* decoder input has 6"):
        model.generate(**inputs, num_beams=2, past_key_values=cache)
    for call in (lambda **extra: model(**batch, **extra), lambda **extra: model.generate(**inputs, **extra)):
        with pytest.raises(ValueError, match="past_key_values is a DynamicCache"):
            call(past_key_values=DynamicCache())


@every_kind
def test_encoder_outputs_of_other_kinds(kind: str) -> None:
    """Whatever carries the states is enough; what is missing is made again."""
    model = build(kind)
    batch = batch_of(model)
    with torch.no_grad():
        expected = model(**batch).logits
        full = model.get_encoder()(batch.pop("input_ids"), batch["attention_mask"])
        for given in (full, BaseModelOutput(full.last_hidden_state), full.to_tuple(), (full.last_hidden_state,)):
            assert_close(model(encoder_outputs=given, **batch).logits, expected, 1e-6)


def test_outputs_that_can_be_asked_for() -> None:
    model = build()
    batch = batch_of(model)
    with torch.no_grad():
        outputs = model(**batch, output_attentions=True, output_hidden_states=True)
        plain = model(**batch)
    rows, source = batch["input_ids"].shape
    steps = batch["decoder_input_ids"].shape[1]
    (weights,) = outputs.cross_attentions
    assert weights.shape == (rows, 1, steps, source)
    assert_close(weights.sum(dim=-1), torch.ones(rows, 1, steps))
    words = batch["attention_mask"].bool()[:, None, None].expand_as(weights)
    assert (weights[~words] == 0).all() and (weights[words] > 0).all()
    assert [states.shape[-1] for states in outputs.encoder_hidden_states] == [16, 20, 20]
    assert [states.shape[-1] for states in outputs.decoder_hidden_states] == [16, 16]
    assert plain.cross_attentions is None and plain.decoder_hidden_states is None
    generated = model.generate(
        **without_target(batch),
        return_dict_in_generate=True,
        output_attentions=True,
        output_hidden_states=True,
        num_beams=2,
    )
    assert len(generated.cross_attentions) == generated.sequences.shape[1] - 1
    assert generated.cross_attentions[0][0].shape == (6, 1, 1, source)


def test_calls_that_cannot_work() -> None:
    model = build()
    batch = batch_of(model)
    source = model.get_encoder()(batch["input_ids"])
    with pytest.raises(ValueError, match="the decoder needs encoder_hidden_states and attention_keys"):
        model.get_decoder()(batch["decoder_input_ids"], encoder_hidden_states=source.last_hidden_state)
    with pytest.raises(ValueError, match="attention_mask has shape .3, 5., the source .3, 9.: both must be the same"):
        model(**{**batch, "attention_mask": torch.ones(3, 5)})
    with pytest.raises(ValueError, match="decoder_input_ids or decoder_inputs_embeds"):
        model(input_ids=batch["input_ids"])
    with pytest.raises(ValueError, match="encoder_outputs has no last_hidden_state"):
        model(encoder_outputs=BaseModelOutput(), decoder_input_ids=batch["decoder_input_ids"])
    recurrent = build("recurrent").model.past_future
    with pytest.raises(ValueError, match='past_future="recurrent": the contents are states of the decoder'):
        recurrent(torch.zeros(1, 1, 16), torch.zeros(1), torch.zeros(1), None)


def test_attention_has_one_implementation() -> None:
    model = build()
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="scaled_dot_product_attention|sdpa"):
        model.set_attn_implementation("sdpa")


@every_kind
def test_one_vector_decodes_step_by_step_in_half_precision(kind: str) -> None:
    """States keep the type of the model, through autocast too."""
    model = build(kind).to(torch.bfloat16)
    inputs = without_target(make_pairs(model.config).batch())
    rows = model.generate(**inputs, num_beams=2, return_dict_in_generate=True)
    assert {state.dtype for state in rows.past_key_values.states} == {torch.bfloat16}
    model = build(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.generate(**inputs).shape[0] == 3
