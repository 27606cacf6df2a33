"""What every translation model does around its base model: labels, logits, the loss, and beam search.

Legend: `B` batch, `S` source and `T` target positions, `V` target vocabulary.
"""

from copy import copy
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import __version__ as transformers_version
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import TransformersKwargs, can_return_tuple

from hf_capsule_mt.modeling.capsule_outputs import CapsuleSeq2SeqLMOutput, CapsuleSeq2SeqModelOutput
from hf_capsule_mt.modeling.input_checks import check_labels
from hf_capsule_mt.modeling.seq2seq_loss import translation_loss

# Releases whose beam search takes the number of target words from the wrong field.
OLD_BEAM_SEARCH = tuple(int(part) for part in transformers_version.split(".")[:2]) < (5, 20)


class TranslationHead:
    """Goes before `MarianMTModel` in the bases of a translation model: its `forward`, and what belongs to it."""

    # The loss is divided by `num_items_in_batch` here, see `translation_loss`.
    accepts_loss_kwargs = True

    config: Any
    model: nn.Module
    lm_head: nn.Linear
    final_logits_bias: Tensor  # [1, V]
    prepare_decoder_input_ids_from_labels: Any

    @can_return_tuple
    def forward(  # type: ignore[misc]
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_routings: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CapsuleSeq2SeqLMOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Target tokens, not shifted; -100 where there is none.
        output_routings (`bool`, *optional*):
            Whether to return the assignment probabilities of every routing site that this call runs; see
            [`CapsuleSeq2SeqLMOutput`].
        num_items_in_batch (`int` or `torch.Tensor`, *optional*):
            The number of target tokens that the loss is divided by, instead of this batch's own; the Trainer gives
            the number over all the batches it accumulates.
        """
        if labels is not None:
            check_labels(labels, self.final_logits_bias.shape[-1])
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_routings=output_routings,
            return_dict=True,
            **{**kwargs, **self._needed_outputs(labels)},
        )
        logits = self.lm_head(outputs.last_hidden_state)
        bias = self.final_logits_bias
        # In place where the type allows: a second [B, T, V] tensor is the largest of a training step.
        logits = logits.add_(bias) if logits.dtype == bias.dtype else logits + bias
        return self._translation_output(outputs, logits, labels, num_items_in_batch)

    def _needed_outputs(self, labels: Tensor | None) -> dict[str, bool]:
        """Arguments with which the base model returns what `_translation_output` needs of it."""
        return {}

    def _translation_output(
        self,
        outputs: CapsuleSeq2SeqModelOutput,
        logits: Tensor,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None,
    ) -> CapsuleSeq2SeqLMOutput:
        loss = None if labels is None else translation_loss(logits, labels, num_items_in_batch)
        states = {key: value for key, value in outputs.items() if key != "last_hidden_state"}
        return CapsuleSeq2SeqLMOutput(loss=loss, logits=logits, **states)

    def _beam_search(self, *args: Any, **kwargs: Any) -> Any:
        """As in Transformers, which before 5.20 takes the number of target words from the source's `vocab_size`."""
        view, target_words = self, self.final_logits_bias.shape[-1]
        if self.config.vocab_size != target_words and OLD_BEAM_SEARCH:
            # The same modules with a config of its own, since another thread may be using this one.
            view = copy(self)
            view.config = copy(self.config)
            view.config.vocab_size = target_words
        return super(TranslationHead, view)._beam_search(*args, **kwargs)  # type: ignore[misc]
