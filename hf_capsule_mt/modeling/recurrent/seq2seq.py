"""What the recurrent families share: vocabularies and their embeddings, the cache, the shape of a translation model.

Embeddings, ties and resizing are those of Transformers' Marian, so that a tokenizer and everything built around a
Marian checkpoint fits these models too; nothing of its layers is used.

Legend: `B` batch, `S` source and `T` target positions, `d` width of the embeddings, `V` target vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.marian.modeling_marian import MarianModel, MarianMTModel, MarianPreTrainedModel
from transformers.utils import logging

from hf_capsule_mt.modeling.capsules.linear_maps import CapsuleModule
from hf_capsule_mt.modeling.capsules.split_linear import SplitLinear
from hf_capsule_mt.modeling.checked_arguments import CheckedArguments
from hf_capsule_mt.modeling.input_checks import check_not_empty, check_tokens
from hf_capsule_mt.modeling.recurrent.cache import CAN_COMPILE_STEPS, RecurrentCache, started_cache
from hf_capsule_mt.modeling.saving.code_export import CodeExportMixin
from hf_capsule_mt.modeling.saving.safe_loading import SafeLoadingMixin
from hf_capsule_mt.modeling.translation_head import TranslationHead

logger = logging.get_logger(__name__)


class RecurrentPreTrainedModel(CheckedArguments, SafeLoadingMixin, CodeExportMixin, MarianPreTrainedModel):
    """Initialisation and loading shared by the classes of the recurrent families."""

    _supports_flash_attn = _supports_sdpa = _supports_flex_attn = False
    _skip_keys_device_placement = ["past_key_values"]
    _keys_to_ignore_on_load_missing: list[str] = []
    _keys_to_ignore_on_save: list[str] = []

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CapsuleModule):
            module.init_capsule_weights(self.config.init_std)


def target_vocabulary(config: Any) -> int:
    """Number of words that the decoder knows."""
    shared = config.share_encoder_decoder_embeddings
    return (None if shared else config.decoder_vocab_size) or config.vocab_size


class WordEmbedding:
    """Goes before `PreTrainedModel` in the bases of a recurrent encoder or decoder: checks and embeds its words."""

    config: Any
    embed_tokens: nn.Embedding
    embed_scale: float
    embedding_dropout: nn.Dropout

    def _make_embedding(self, vocabulary: int) -> None:
        self.embed_tokens = nn.Embedding(vocabulary, self.config.d_model, self.config.pad_token_id)
        self.embed_scale = self.config.d_model**0.5 if self.config.scale_embedding else 1.0
        self.embedding_dropout = nn.Dropout(self.config.dropout)

    def _embed(self, side: str, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """`[B, S, d]`; `side` is `""` or `"decoder_"`, as in the names of the arguments."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"give exactly one of {side}input_ids or {side}inputs_embeds")
        check_tokens(f"{side}input_ids", input_ids, self.embed_tokens.num_embeddings)
        check_not_empty(f"{side}inputs_embeds", inputs_embeds)
        words = inputs_embeds
        if words is None:
            words = self.embed_tokens(input_ids) * self.embed_scale
        elif side == "decoder_":
            words = words * self.embed_scale  # as in Marian, which scales what it is given on this side only
        return self.embedding_dropout(words)

    def _wants(self, name: str, given: bool | None) -> bool:
        """An option of the call such as `output_attentions`, or the configuration's where it is not given."""
        return bool(getattr(self.config, name, False) if given is None else given)


class RecurrentModel(RecurrentPreTrainedModel, MarianModel):
    """An encoder and a decoder with the embeddings of Marian; subclasses add `forward`."""

    encoder_class: Any
    decoder_class: Any

    def __init__(self, config: Any) -> None:
        config.check()
        super(MarianModel, self).__init__(config)  # past Marian's own constructor
        self._tied_weights_keys = {}
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
            sharing = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
            self._tied_weights_keys = dict.fromkeys(sharing, "shared.weight")
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        self.post_init()


class RecurrentForConditionalGeneration(TranslationHead, RecurrentPreTrainedModel, MarianMTModel, GenerationMixin):
    """A `RecurrentModel` with an output layer: `logits = o E^T + final_logits_bias`, the bias a buffer of zeros."""

    model_class: type[RecurrentModel]

    def __init__(self, config: Any) -> None:
        config.check()
        super(MarianMTModel, self).__init__(config)  # past Marian's own constructor
        self.model = self.model_class(config)
        words = target_vocabulary(config)
        self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        if config.share_encoder_decoder_embeddings:
            sharing = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
            self._tied_weights_keys = dict.fromkeys(sharing, "model.shared.weight")
        self.final_logits_bias = nn.Buffer(torch.zeros(1, words))
        self.lm_head = SplitLinear(config.d_model, words, bias=False)
        self.post_init()

    def get_compiled_call(self, compile_config: Any) -> Callable[..., Any]:
        """As in Transformers; the compiler, which refuses RNNs, is told for good that steps through cells are fine."""
        call = super().get_compiled_call(compile_config)

        def call_with_cells(*args: Any, **kwargs: Any) -> Any:
            torch._dynamo.config.allow_rnn = True  # here, since every thread has settings of its own
            return call(*args, **kwargs)

        return call_with_cells

    def create_masks_for_generate(
        self, *, inputs_embeds: Tensor, attention_mask: Tensor | None, past_key_values: RecurrentCache, **kwargs: Any
    ) -> Tensor | None:
        """Which of the new words are real; a recurrence needs no causal mask, and no mask of what it has read."""
        if attention_mask is None or not past_key_values.is_initialized:  # the first call looks at its length
            return attention_mask
        return attention_mask[:, -inputs_embeds.shape[1] :].contiguous()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """As in Transformers, but the cache is a [`RecurrentCache`], static where a static cache is asked for."""
        if model_kwargs.get("past_key_values") is not None or generation_config.use_cache is False:
            return super()._prepare_cache_for_generation(  # type: ignore[misc]
                generation_config, model_kwargs, *args, **kwargs
            )
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", "static"):
            logger.warning_once(
                f"cache_implementation={kind!r} is ignored: a recurrent decoder keeps a few states, whose size does "
                "not depend on the length."
            )
        if kind == "static" and not CAN_COMPILE_STEPS:
            logger.warning_once('cache_implementation="static" needs PyTorch 2.11 and is ignored')
        cache = RecurrentCache(static=kind == "static" and CAN_COMPILE_STEPS)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs["past_key_values"] = cache
        return None


def cache_to_use(past_key_values: Any, use_cache: bool, batch_size: int) -> RecurrentCache | None:
    """The cache of one call of a decoder: the given one, a new one, or None."""
    if past_key_values is None:
        return RecurrentCache() if use_cache else None
    return started_cache(past_key_values, batch_size)


def read_encoder_outputs(encoder_outputs: Any) -> tuple[BaseModelOutput, Tensor]:
    """What a caller gave as `encoder_outputs`, and the source's states `[B, S, …]` in it.

    Of a tuple only the first member is used: nothing says what the others are.
    """
    if not isinstance(encoder_outputs, BaseModelOutput):
        encoder_outputs = BaseModelOutput(last_hidden_state=encoder_outputs[0])
    if encoder_outputs.last_hidden_state is None:
        raise ValueError("encoder_outputs has no last_hidden_state: give the output of this model's encoder")
    return encoder_outputs, encoder_outputs.last_hidden_state
