"""Marian and its capsule models in int8: the parts that are no plain linear map, and their steps for the lean loops.

Legend: `R` rows, which are sentences or their beams; `S` source positions, `L` room for target positions, `d` model
width, `H` heads of size `D`, `I` inputs of a stacked linear map.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hf_capsule_mt.inference.int8_layers import Int8Linear, Int8Module, int8_rounding, pack, product, row_scales
from hf_capsule_mt.modeling.capsule_router import StackedLinear
from hf_capsule_mt.modeling.head_aggregation import GatedRoutedProjection
from hf_capsule_mt.modeling.input_checks import check_length, word_mask
from hf_capsule_mt.modeling.lean_search import LeanSearch, Steps, as_defined

Copies = dict[int, Any]  # of `copy.deepcopy`: what takes the place of an object, by the object's id
ROOM = 32


class Int8StackedLinear(Int8Module):
    """Stands for [`~hf_capsule_mt.modeling.capsule_router.StackedLinear`]: one product for each input."""

    bias: Tensor | None

    def __init__(self, stacked: StackedLinear) -> None:
        super().__init__()
        self.rounding = int8_rounding()
        self.packed = [pack(weight) for weight in stacked.weight]
        self.register_buffer("bias", None if stacked.bias is None else stacked.bias.detach().squeeze(1).clone())

    def forward(self, features: Tensor) -> Tensor:
        """`[…, I, in]` to `[…, I, out]`."""
        largest = row_scales(features)
        inputs = (features / largest).unbind(-2)
        products = [product(rows, weight, self.rounding) for rows, weight in zip(inputs, self.packed, strict=True)]
        stacked = torch.stack(products, dim=-2)
        return stacked.mul_(largest) if self.bias is None else torch.addcmul(self.bias, stacked, largest)


class Int8GatedProjection(nn.Module):
    """Stands for [`~hf_capsule_mt.modeling.head_aggregation.GatedRoutedProjection`]."""

    def __init__(self, projection: GatedRoutedProjection, copies: Copies) -> None:
        super().__init__()
        self.linear = Int8Linear.of(projection)
        self.routed = copy.deepcopy(projection.routed, copies)
        self.gate = copy.deepcopy(projection.gate, copies)

    def forward(self, heads: Tensor) -> Tensor:
        return self.linear(heads) + self.gate * self.routed(heads)


def stacked_linear(stacked: StackedLinear, copies: Copies) -> nn.Module:
    """The logits of EM routing, one output an input, stay as they are: they take no time, and decide much."""
    return copy.deepcopy(stacked, copies) if stacked.out_features == 1 else Int8StackedLinear(stacked)


def decoder_layer(layer: Any, copies: Copies) -> nn.Module:
    """The layer, with query, key and value as one product beside the three that Transformers calls one by one."""
    quantized: Any = copy.deepcopy(layer, copies)
    attention = layer.self_attn
    three = [attention.q_proj, attention.k_proj, attention.v_proj]
    if all(type(projection) is nn.Linear for projection in three):  # an adapter's are others
        weight, bias = (torch.cat([getattr(each, name) for each in three]) for name in ("weight", "bias"))
        quantized.self_attn.query_key_value = Int8Linear(weight, bias)
    return quantized


class LeanMarian(LeanSearch):
    """Goes before an int8 Marian: translates through the lean loops where they give what Transformers gives."""

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        given = model_kwargs.get("past_key_values")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
        cache: Any = model_kwargs.get("past_key_values")
        if cache is not None and given is None and generation_config.cache_implementation is None:
            cache.internal = True  # nobody else sees it, so that the steps may have one of their own

    def lean_steps(self, encoder_outputs: Any, attention_mask: Tensor | None) -> Steps | None:
        decoder = self.model.decoder
        joined = all(hasattr(layer.self_attn, "query_key_value") for layer in decoder.layers)
        if not joined or not as_defined(*decoder.modules()):
            return None
        return MarianSteps(self, encoder_outputs, attention_mask)


class MarianSteps:
    """One word after the other, from the encoder's output for `R` rows."""

    def __init__(self, model: Any, encoded: Any, attention_mask: Tensor | None) -> None:
        decoder, source = model.model.decoder, encoded["last_hidden_state"]  # [R, S, d]
        self.decoder, self.lm_head = decoder, model.lm_head
        self.bias = model.final_logits_bias if model.final_logits_bias.any() else None
        self.aggregation = getattr(decoder, "layer_aggregation", None)
        self.past_future = getattr(model.model, "past_future", None)
        self.votes: tuple[Any, ...] = ()
        if self.past_future is not None:
            self.votes = encoded.get("source_votes"), encoded.get("source_keys")
            if any(part is None for part in self.votes):
                self.votes = model.model.encoder.vote(source)
        self.words = word_mask(attention_mask, source)  # [R, S]
        self.mask: Tensor | None = None
        if self.words is not None and not self.words.all():
            hidden = torch.zeros(self.words.shape).masked_fill_(~self.words, torch.finfo(source.dtype).min)
            self.mask = hidden[:, None, None]  # [R, 1, 1, S]
        attentions = [layer.encoder_attn for layer in decoder.layers]
        self.source = [
            [_heads(project(source), each.head_dim) for project in (each.k_proj, each.v_proj)] for each in attentions
        ]
        # Keys and values of all layers together: beams are chosen with one call.
        heads, size = attentions[0].num_heads, attentions[0].head_dim
        self.cache = source.new_empty(len(attentions), len(source), 2, heads, ROOM, size)
        self.past = 0

    def __call__(self, words: Tensor) -> Tensor:
        logits = self.lm_head(self._states(words))
        return logits if self.bias is None else logits.add_(self.bias)

    @torch.inference_mode()  # small operations take less time in it; the logits, which others change, are made outside
    def _states(self, words: Tensor) -> Tensor:
        """The last words `[R]`; returns what the output layer reads, `[R, d]`."""
        decoder, place = self.decoder, self.past
        check_length("the target", place + 1, decoder.max_target_positions)
        if place == self.cache.shape[4]:
            self.cache = torch.cat([self.cache, torch.empty_like(self.cache)], dim=4)
        self.past += 1
        new, kept = self.cache.narrow(4, place, 1), self.cache.narrow(4, 0, self.past)
        states = decoder.embed_tokens(words) * decoder.embed_scale + decoder.embed_positions.weight[place]  # [R, d]
        outputs = []
        for layer, here, seen, source in zip(decoder.layers, new, kept, self.source, strict=True):
            attention = layer.self_attn
            three = attention.query_key_value(states).view(len(words), 3, -1, 1, attention.head_dim)
            here.copy_(three[:, 1:])
            keys, values = seen.unbind(1)  # [R, H, T, D]
            heads = scaled_dot_product_attention(three[:, 0], keys, values, scale=attention.scaling)
            states = layer.self_attn_layer_norm(states + attention.out_proj(heads.flatten(1)))
            attention = layer.encoder_attn
            query = attention.q_proj(states).view(len(words), -1, 1, attention.head_dim)
            keys, values = source
            heads = scaled_dot_product_attention(query, keys, values, self.mask, scale=attention.scaling)
            states = layer.encoder_attn_layer_norm(states + attention.out_proj(heads.flatten(1)))
            states = layer.final_layer_norm(states + layer.fc2(layer.activation_fn(layer.fc1(states))))
            outputs.append(states)
        if self.aggregation is not None:
            states = self.aggregation(outputs)
        if self.past_future is not None:
            states = self.past_future(states.unsqueeze(1), *self.votes, self.words).states.squeeze(1)
        return states

    def select(self, rows: Tensor) -> None:
        # The rows of a sentence have the same source.
        self.cache = self.cache.index_select(1, rows)


def _heads(states: Tensor, size: int) -> Tensor:
    """`[R, S, d]` to `[R, H, S, D]`."""
    return states.unflatten(-1, (-1, size)).transpose(1, 2)
