# Copied from hf_capsule_mt 0.1.0 (recurrent.py), Apache-2.0, for trust_remote_code.
import torch
from collections.abc import Callable, Sequence
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.marian.modeling_marian import shift_tokens_right
from transformers.utils import logging
from typing import Any, NamedTuple
from .capsules import CapsuleModule
from .checked_arguments import CheckedArguments
from .input_checks import check_words
from .outputs import CACHE
from .saving import CodeExportMixin, SafeLoadingMixin
from .translation_head import TranslationHead
from .vocabularies import make_head, tie_base


# modeling/recurrent/bidirectional_rnn.py
"""Bidirectional recurrent layers that ignore padding, and the linear maps that recurrent layers use.

Legend: `B` batch, `S` source positions, `in` and `H` width of the inputs and of one direction's states, `G` gates of
a cell: 3 for a GRU, 4 for an LSTM.
"""
KINDS = ("gru", "lstm")
BFLOAT16_FAILS = torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
COMPUTED_IN_FLOAT32 = (torch.float16, torch.bfloat16) if BFLOAT16_FAILS else (torch.float16,)  # LSTMs on a CPU


def init_input_weight(weight: Tensor) -> None:
    """`[G * H, in]`: initial outputs are as large as the inputs, independent of `init_std`."""
    init.normal_(weight, std=weight.shape[1] ** -0.5)


@torch.no_grad()
def init_recurrent_weight(weight: Tensor) -> None:
    """`[G * H, H]`: one orthogonal matrix for each gate, so that initial states neither explode nor vanish."""
    # The blocks below are views, which do not have the flag of a loaded weight.
    if not getattr(weight, "_is_hf_initialized", False):
        for block in weight.split(weight.shape[1]):
            init.orthogonal_(block)


class InputLinear(CapsuleModule, nn.Linear):
    """A linear map that starts with outputs as large as its inputs, and with bias 0."""

    def init_capsule_weights(self, std: float) -> None:
        init_input_weight(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class RecurrentLinear(CapsuleModule, nn.Linear):
    """A linear map of a state `[…, H]` to G blocks of the same width, `[…, G * H]`; each block starts orthogonal."""

    def init_capsule_weights(self, std: float) -> None:
        init_recurrent_weight(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


def init_recurrent_layer(layer: nn.RNNBase) -> None:
    for name, parameter in layer.named_parameters():
        if name.startswith("weight_ih"):
            init_input_weight(parameter)
        elif name.startswith("weight_hh"):
            init_recurrent_weight(parameter)
        elif name.startswith("bias_ih") and layer.mode == "LSTM":
            # The forget gate, second of four, starts open.
            start = torch.zeros_like(parameter)
            start[layer.hidden_size : 2 * layer.hidden_size] = 1.0
            init.copy_(parameter, start)
        else:
            init.zeros_(parameter)


class GRU(CapsuleModule, nn.GRU):
    """[`torch.nn.GRU`], initialised by our models. Transformers does not initialise GRUs."""

    def init_capsule_weights(self, std: float) -> None:
        init_recurrent_layer(self)


class LSTM(CapsuleModule, nn.LSTM):
    """[`torch.nn.LSTM`] of one layer and direction, `batch_first`, initialised by our models."""

    def init_capsule_weights(self, std: float) -> None:
        init_recurrent_layer(self)

    def forward(  # type: ignore[override]
        self, inputs: Tensor, states: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`inputs` `[B, S, in]` and the two states `[1, B, H]` before them; None means zeros."""
        precision = _low_precision(inputs)
        if inputs.device.type == "cpu" and precision in COMPUTED_IN_FLOAT32:
            with torch.autocast("cpu", enabled=False):
                weights = [getattr(self, name).float() for name in self._flat_weights_names]
                start = inputs.new_zeros(1, len(inputs), self.hidden_size, dtype=torch.float32)
                before = (start, start) if states is None else (states[0].float(), states[1].float())
                results = torch.lstm(inputs.float(), before, weights, True, 1, 0.0, self.training, False, True)
                outputs, hidden, cell = (tensor.to(precision) for tensor in results)
            return outputs, (hidden, cell)
        return super().forward(inputs, states)

    def step(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """`inputs` `[B, in]` and the two states `[B, H]` before them; returns the two states after them."""
        if torch.is_grad_enabled() or self._forward_hooks or self._forward_pre_hooks or "forward" in vars(self):
            hidden, cell = self(inputs.unsqueeze(1), (hidden.unsqueeze(0), cell.unsqueeze(0)))[1]
            return hidden.squeeze(0), cell.squeeze(0)
        # Not `_flat_weights`: only a call of the layer renews that list after parameters were replaced.
        weights: Any = [getattr(self, name) for name in self._flat_weights_names]
        return torch.lstm_cell(inputs, (hidden, cell), *weights)


def _low_precision(inputs: Tensor) -> torch.dtype:
    """The data type in which PyTorch computes a product of `inputs`."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else inputs.dtype


class WordOrder(NamedTuple):
    """Where the real words of each sentence are. Computed once for all layers, without waiting for a device."""

    mask: Tensor  # [B, S], true for real words
    forward: Tensor  # [B, S], positions of the words in reading order, then of the padding
    backward: Tensor  # [B, S], the same with the words in reverse order
    forward_place: Tensor  # [B, S], the place of each position in `forward`; undefined for padding
    backward_place: Tensor  # [B, S], its place in `backward`


def word_order(mask: Tensor) -> WordOrder:
    """`mask` `[B, S]` is true for real words; padding may be anywhere."""
    forward = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    counted = mask.cumsum(dim=1)
    count = counted[:, -1:]  # [B, 1]
    place = (counted - 1).clamp(min=0)
    step = torch.arange(mask.shape[1], device=mask.device)
    backward = forward.gather(1, torch.where(step < count, count - 1 - step, step))
    return WordOrder(mask, forward, backward, place, (count - counted).clamp(min=0))


def gather_positions(values: Tensor, places: Tensor) -> Tensor:
    """`values` `[B, S, …]` at `places` `[B, S]`."""
    return values.gather(1, places.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


class BidirectionalLayer(nn.Module):
    """A recurrent layer in each direction over the real words: `[B, S, in]` to `[B, S, 2 H]`, 0 at padding."""

    def __init__(self, kind: str, input_size: int, hidden_size: int) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}: must be one of {', '.join(map(repr, KINDS))}")
        layer = GRU if kind == "gru" else LSTM
        self.forward_rnn = layer(input_size, hidden_size, batch_first=True)
        self.backward_rnn = layer(input_size, hidden_size, batch_first=True)

    def forward(self, states: Tensor, order: WordOrder | None = None) -> Tensor:
        """`states` `[B, S, in]`; `order=None` means that every position is a real word."""
        if order is None:
            ahead = self.forward_rnn(states)[0]
            back = self.backward_rnn(states.flip(1))[0].flip(1)
            return torch.cat([ahead, back], dim=-1)
        ahead = gather_positions(self.forward_rnn(gather_positions(states, order.forward))[0], order.forward_place)
        back = gather_positions(self.backward_rnn(gather_positions(states, order.backward))[0], order.backward_place)
        return torch.cat([ahead, back], dim=-1).masked_fill(~order.mask.unsqueeze(-1), 0.0)


class BidirectionalRNN(GradientCheckpointingLayer, BidirectionalLayer):
    """A [`BidirectionalLayer`] with gradient checkpointing, for use outside of another checkpointed layer."""


# modeling/recurrent/cache.py
"""The cache of a recurrent decoder: a few state vectors, independent of the number of steps.

Legend: `B` batch (each beam is a row), `T` steps of one call.
"""
States = tuple[Tensor, ...]

# Earlier releases of PyTorch compile the steps again for each new cache, so for every search.
CAN_COMPILE_STEPS = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 11)


class RecurrentStateLayer(CacheLayerMixin):
    """The states after the last step. If steps may be taken back, also those after every earlier step."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    length: Any  # int, or a tensor if static

    def __init__(self, static: bool = False) -> None:
        super().__init__()
        self.is_compileable = static
        self.record_past = False
        self.states: States | None = None
        self.length = 0
        self.past: list[States | None] = []  # before each step that may be taken back; None before the first

    @property
    def batch_size(self) -> int:
        return -1 if self.states is None else self.states[0].shape[0]

    def append(self, steps: Sequence[States], count: int | None = None) -> None:
        """`steps`: the states `[B, …]` after each of T steps. With `count`: only those after the last of `count`."""
        if self.record_past:
            if count not in (None, len(steps)):
                raise ValueError("this cache keeps every step: append the states after each of them")
            self.past += [self.states, *map(tuple, steps[:-1])]
        if self.is_compileable:
            self._overwrite(steps[-1])
        else:
            self.states = tuple(steps[-1])
        self.length += len(steps) if count is None else count
        self.is_initialized = True

    def _overwrite(self, states: States) -> None:
        """Copy the last states into the existing tensors. Create new ones at the first step, or if `B` has changed."""
        if self.states is not None and self.batch_size == len(states[0]):
            for state, new in zip(self.states, states, strict=True):
                state.copy_(new)
            return
        # Under autocast the first step returns half precision, and later steps return float32.
        exact = torch.float32 if torch.is_autocast_enabled(states[0].device.type) else states[0].dtype
        self.states = tuple(state.detach().to(exact, copy=True) for state in states)
        self.length = torch.as_tensor(self.length, device=states[0].device)
        if not torch.compiler.is_compiling():
            for fixed in (*self.states, self.length):
                torch._dynamo.mark_static_address(fixed)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Continue with the rows `beam_idx` `[B']`; rows may be dropped or repeated."""
        if self.states is None:
            return
        selected = _rows(self.states, beam_idx)
        if self.is_compileable:
            self._overwrite(selected)
        else:
            self.states = selected
        self.past = [None if states is None else _rows(states, beam_idx) for states in self.past]

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.states is not None:
            rows = torch.arange(self.batch_size, device=self.states[0].device)
            self.reorder_cache(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.states is not None:
            if indices.dtype == torch.bool:
                indices = indices.nonzero().squeeze(-1)
            self.reorder_cache(indices)

    def crop(self, tokens_to_remove: int) -> None:
        """Return to the states before the last `-tokens_to_remove` steps, for the current rows."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"tokens_to_remove={tokens_to_remove}: must be 0 or negative; pass -n to take back the last n steps"
            )
        count = min(-tokens_to_remove, int(self.length)) if tokens_to_remove else 0
        if count == 0:
            return
        if count > len(self.past):
            raise ValueError(
                f"tokens_to_remove={-count}: this cache kept the states of {len(self.past)} earlier steps; call its "
                "activate_past_recording() before steps that you may take back"
            )
        self.states = self.past[-count]
        del self.past[-count:]
        self.length -= count

    def reset(self) -> None:
        self.states, self.length, self.past, self.is_initialized = None, 0, [], False

    def activate_past_recording(self) -> None:
        """From now on, keep the states of every step, so that `crop` can return to them."""
        self.record_past, self.is_compileable = True, False
        self.length = int(self.length)

    def get_seq_length(self) -> Any:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[Any, int]:
        return self.length + query_length, 0

    def offload(self) -> None:
        """Does nothing: states are too small to be worth moving."""

    prefetch = offload

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("a recurrent decoder has states, not keys and values: use append")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a recurrent decoder has states, not keys and values: use append")


def _rows(states: States, rows: Tensor) -> States:
    """The rows `[B']` of each state `[B, …]`."""
    return tuple(state.index_select(0, rows.to(state.device)) for state in states)


class RecurrentCache(Cache):
    """The cache of a recurrent decoder: a tuple of states `[B, …]`. Each step has the same cost."""

    def __init__(self, static: bool = False) -> None:
        self.layer = RecurrentStateLayer(static)
        super().__init__(layers=[self.layer])

    @property
    def states(self) -> States | None:
        """The states after the last step, None before the first."""
        return self.layer.states

    def append(self, steps: Sequence[States], count: int | None = None) -> None:
        """The states after each step, or only after the last of `count` steps."""
        self.layer.append(steps, count)

    @property
    def keeps_every_step(self) -> bool:
        """Whether `crop` can take steps back; then `append` needs the states after every step."""
        return self.layer.record_past

    @property
    def is_initialized(self) -> bool:
        return self.layer.is_initialized


def cache_to_use(cache: Any, use_cache: bool, batch_size: int) -> RecurrentCache | None:
    """The cache for one call of a decoder: the one passed, a new one, or None."""
    if cache is None:
        return RecurrentCache() if use_cache else None
    if not isinstance(cache, RecurrentCache):
        raise ValueError(
            f"the cache is a {type(cache).__name__}: a recurrent decoder needs a RecurrentCache; "
            "leave it out, and the model creates one"
        )
    cached = cache.layer.batch_size
    if cached != -1 and cached != batch_size:  # `in` failed once in compiled code
        raise ValueError(
            f"the cache holds the states of {cached} sentences (beams count), the decoder input has "
            f"{batch_size}: both must be the same; use batch_repeat_interleave, batch_select_indices, or a new cache"
        )
    return cache


# modeling/recurrent/lstm_decoder.py
"""The layers of CapsNMT's decoder: [`torch.nn.LSTM`] for whole sentences, LSTM cells for single steps.

Legend: `B` batch, `S` source and `T` target positions, `d` width.
"""
class DecoderLSTMLayer(GradientCheckpointingLayer):
    """An LSTM with a residual connection and a layer norm around it (section 2, CapsNMT)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.rnn = LSTM(config.d_model, config.d_model, batch_first=True)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        words: Tensor,
        order: WordOrder | None,
        hidden: Tensor | None,
        cell: Tensor | None,
        keep: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All `words` `[B, T, d]` at once, or one `[B, d]`, from the states `[B, d]`; None means zeros."""
        if words.dim() == 2:
            return self._step(words, hidden, cell, keep)
        start = None if hidden is None or cell is None else (hidden.unsqueeze(0), cell.unsqueeze(0))
        read = words if order is None else gather_positions(words, order.forward)
        states, (hidden, cell) = self.rnn(read, start)
        if order is not None:
            states = gather_positions(states, order.forward_place)
        return self._join(words, states), hidden.squeeze(0), cell.squeeze(0)

    def _step(self, word: Tensor, hidden: Any, cell: Any, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        new_hidden, new_cell = self.rnn.step(word, hidden.to(word.dtype), cell.to(word.dtype))
        output = self._join(word, new_hidden)
        if keep is not None:
            new_hidden = torch.where(keep, new_hidden, hidden.to(new_hidden.dtype))
            new_cell = torch.where(keep, new_cell, cell.to(new_cell.dtype))
        return output, new_hidden, new_cell

    def _join(self, words: Tensor, states: Tensor) -> Tensor:
        return self.norm(words + self.dropout(states))


class WordAttention(nn.Module):
    """One head over the source words, of the hybrid with RNMT, or over its capsules: `q . k / sqrt(d)`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.query = InputLinear(config.d_model, config.d_model, bias=False)
        self.out = InputLinear(config.d_model, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: Tensor, keys: Tensor, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """`states` `[B, T, d]`; `keys` and `source` `[B, S, d]`; returns the output and the weights `[B, T, S]`."""
        scores = self.query(states) @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1).to(source.dtype)
        return self.norm(states + self.dropout(self.out(weights @ source))), weights


class LSTMStack(nn.Module):
    """The decoder's layers; attention, if there is one, comes after the first."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList([DecoderLSTMLayer(config) for _ in range(config.decoder_layers)])
        self.attention = None if config.decoder_context == "fixed" else WordAttention(config)

    def at_once(
        self, words: Tensor, order: WordOrder | None, states: States | None, source: tuple[Any, ...]
    ) -> tuple[list[Tensor], Tensor | None, States]:
        """All words `[B, T, d]` at once: outputs of every layer, attention weights, states after the last word."""
        outputs, weights, after = [words], None, []
        for index, layer in enumerate(self.layers):
            hidden, cell = (None, None) if states is None else states[2 * index : 2 * index + 2]
            words, hidden, cell = layer(words, order, hidden, cell)
            if index == 0 and self.attention is not None:
                words, weights = self.attention(words, *source)
            outputs.append(words)
            after += [hidden, cell]
        return outputs, weights, tuple(after)

    def step_by_step(
        self, words: Tensor, keep: Tensor | None, states: States | None, source: tuple[Any, ...]
    ) -> tuple[list[Tensor], Tensor | None, list[States]]:
        """As `at_once`, one word at a time, with the states after each; `keep` `[B, T]` is false for padding."""
        if states is None:
            states = self.initial_states(words[:, 0])
        all_outputs, all_weights, steps = [], [], []
        keeps = [None] * words.shape[1] if keep is None else keep.unsqueeze(-1).unbind(1)
        for word, kept in zip(words.unbind(1), keeps, strict=True):
            outputs, weights, states = self.step(word, kept, states, source)
            if weights is not None:
                all_weights.append(weights)
            all_outputs.append(outputs)
            steps.append(states)
        _, *layers = [torch.stack(layer, dim=1) for layer in zip(*all_outputs, strict=True)]
        return [words, *layers], torch.cat(all_weights, dim=1) if all_weights else None, steps

    def step(
        self, word: Tensor, keep: Tensor | None, states: States, source: tuple[Any, ...]
    ) -> tuple[list[Tensor], Tensor | None, States]:
        """One word `[B, d]`; `keep` `[B, 1]` is false for padding."""
        outputs, weights, after = [word], None, []
        for index, layer in enumerate(self.layers):
            word, hidden, cell = layer(word, None, *states[2 * index : 2 * index + 2], keep)
            if index == 0 and self.attention is not None:
                attended, weights = self.attention(word.unsqueeze(1), *source)
                word = attended.squeeze(1)
            outputs.append(word)
            after += [hidden, cell]
        return outputs, weights, tuple(after)

    def initial_states(self, word: Tensor) -> States:
        """The states before the first word `[B, d]`."""
        return (torch.zeros_like(word),) * (2 * len(self.layers))


# modeling/recurrent/embeddings.py
"""Access to the embeddings and the output layer of a recurrent model, and resizing them."""
class TwoEmbeddings:
    """Mixin of a base model with an encoder and a decoder; list it before `PreTrainedModel`."""

    config: Any
    encoder: Any
    decoder: Any

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = self.decoder.embed_tokens = value

    def get_decoder_input_embeddings(self) -> nn.Module:
        return self.decoder.embed_tokens

    def set_decoder_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.embed_tokens = value


class ResizableHead:
    """Mixin of a translation model whose head `make_head` created; list it before `PreTrainedModel`."""

    config: Any
    model: Any
    lm_head: Any
    tie_weights: Any
    _get_resized_embeddings: Any
    _get_resized_lm_head: Any
    _resize_final_logits_bias: Any  # of `TranslationHead`

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in Transformers: resize the source's embeddings. With one vocabulary, also resize the target side."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)  # type: ignore[misc]
        if self.config.share_encoder_decoder_embeddings:
            self._resize_target(embeddings.num_embeddings)
        return embeddings

    def _resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in Transformers, but 5.17 to 5.24 would also resize the head of a target with its own vocabulary."""
        embeddings = self._resized(self.model.get_input_embeddings(), *args, **kwargs)
        self.model.set_input_embeddings(embeddings)
        if self.config.share_encoder_decoder_embeddings and not self.config.tie_word_embeddings:
            self.lm_head = self._get_resized_lm_head(self.lm_head, embeddings.num_embeddings)
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Resize the embeddings and the output layer of a target with its own vocabulary."""
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "share_encoder_decoder_embeddings=True: both sides have one vocabulary; call resize_token_embeddings"
            )
        decoder: Any = self.model.decoder
        decoder.embed_tokens = self._resized(decoder.embed_tokens, new_num_tokens)
        if not self.config.tie_word_embeddings:
            self.lm_head = self._get_resized_lm_head(self.lm_head, new_num_tokens)
        self._resize_target(new_num_tokens)
        return decoder.embed_tokens

    def _resized(self, embeddings: nn.Embedding, *args: Any, **kwargs: Any) -> nn.Embedding:
        resized = self._get_resized_embeddings(embeddings, *args, **kwargs)
        return resized.requires_grad_(embeddings.weight.requires_grad)

    def _resize_target(self, words: int) -> None:
        self.config.decoder_vocab_size = words
        self.tie_weights()
        self._resize_final_logits_bias()


# modeling/recurrent/seq2seq.py
"""The base classes of the recurrent families: initialisation, embeddings, encoder and decoder, the cache.

Names of weights, ties and resizing are those of Transformers' Marian, so tools for Marian checkpoints also work here.

Legend: `B` batch, `S` source and `T` target positions, `d` width of the embeddings, `V` target vocabulary.
"""
logger = logging.get_logger(__name__)


class RecurrentPreTrainedModel(CheckedArguments, SafeLoadingMixin, CodeExportMixin, PreTrainedModel):
    """Initialisation and loading shared by the classes of the recurrent families."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _can_compile_fullgraph = True

    _supports_flash_attn = _supports_sdpa = _supports_flex_attn = False
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _keys_to_ignore_on_load_missing: list[str] = []
    _keys_to_ignore_on_save: list[str] = []

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        words = torch.tensor([[1, 2, 0], [2, 0, self.config.pad_token_id]], device=self.device)
        mask = words.ne(self.config.pad_token_id).long()
        return {"input_ids": words, "attention_mask": mask, "decoder_input_ids": words}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CapsuleModule):
            module.init_capsule_weights(self.config.init_std)
        elif isinstance(module, TranslationHead):
            init.zeros_(module.final_logits_bias)


class WordEmbedding:
    """Mixin of an encoder or decoder; list it before `PreTrainedModel`. Checks and embeds the words."""

    config: Any
    embed_tokens: nn.Embedding
    embed_scale: float
    embedding_dropout: nn.Dropout

    def _make_embedding(self, vocabulary: int) -> None:
        self.embed_tokens = nn.Embedding(vocabulary, self.config.d_model, self.config.pad_token_id)
        self.embed_scale = self.config.d_model**0.5 if self.config.scale_embedding else 1.0
        self.embedding_dropout = nn.Dropout(self.config.dropout)

    def _embed(self, side: str, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """`[B, S, d]`; `side` is `""` or `"decoder_"`, the prefix of the argument names."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"pass exactly one of {side}input_ids or {side}inputs_embeds")
        check_words(side, input_ids, inputs_embeds, self.embed_tokens.num_embeddings)
        words = inputs_embeds
        if words is None:
            words = self.embed_tokens(input_ids) * self.embed_scale
        elif side == "decoder_":
            words = words * self.embed_scale  # as Marian does, on this side only
        return self.embedding_dropout(words)

    def _option(self, name: str, value: bool | None) -> bool:
        """The value of an option such as `output_attentions`; None means that of the configuration."""
        return bool(getattr(self.config, name, False) if value is None else value)


class RecurrentModel(TwoEmbeddings, RecurrentPreTrainedModel):
    """An encoder and a decoder with their embeddings; subclasses define `forward`."""

    encoder_class: Any
    decoder_class: Any

    def __init__(self, config: Any) -> None:
        config.check()
        super().__init__(config)
        tie_base(self)
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        self.post_init()


class RecurrentForConditionalGeneration(TranslationHead, ResizableHead, RecurrentPreTrainedModel, GenerationMixin):
    """A `RecurrentModel` with an output layer."""

    model_class: type[RecurrentModel]

    def __init__(self, config: Any) -> None:
        config.check()
        super().__init__(config)
        self.model = self.model_class(config)
        make_head(self)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels `[B, T]` shifted right after a start token; -100 becomes padding."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def get_compiled_call(self, compile_config: Any) -> Callable[..., Any]:
        """As in Transformers. From then on RNNs are allowed in compiled code; PyTorch's default forbids them."""
        call = super().get_compiled_call(compile_config)

        def call_with_cells(*args: Any, **kwargs: Any) -> Any:
            torch._dynamo.config.allow_rnn = True  # in every call: each thread has its own settings
            return call(*args, **kwargs)

        return call_with_cells

    def create_masks_for_generate(
        self, *, inputs_embeds: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Tensor | None:
        """Which new words are real. A recurrence needs no causal mask, and no mask of words that it has read."""
        if attention_mask is None or not kwargs[CACHE].is_initialized:  # the first call checks its length
            return attention_mask
        return attention_mask[:, -inputs_embeds.shape[1] :].contiguous()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """As in Transformers 5.24, but creates a [`RecurrentCache`], static for `cache_implementation="static"`."""
        if model_kwargs.get(CACHE) is not None or generation_config.use_cache is False:
            return super()._prepare_cache_for_generation(  # type: ignore[misc]
                generation_config, model_kwargs, *args, **kwargs
            )
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", "static"):
            logger.warning_once(
                f"cache_implementation={kind!r} is ignored: a recurrent decoder keeps a few states, whose size does "
                "not depend on the length"
            )
        if kind == "static" and not CAN_COMPILE_STEPS:
            logger.warning_once('cache_implementation="static" needs PyTorch 2.11 and is ignored')
        cache = RecurrentCache(static=kind == "static" and CAN_COMPILE_STEPS)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs[CACHE] = cache
        return None


def read_encoder_outputs(encoder_outputs: Any) -> tuple[BaseModelOutput, Tensor]:
    """`encoder_outputs` as an output object, and the source's states `[B, S, …]` in it."""
    if not isinstance(encoder_outputs, BaseModelOutput):
        encoder_outputs = BaseModelOutput(last_hidden_state=encoder_outputs[0])
    if encoder_outputs.last_hidden_state is None:
        raise ValueError("encoder_outputs has no last_hidden_state: pass the output of this model's encoder")
    return encoder_outputs, encoder_outputs.last_hidden_state
