"""Access to the embeddings and the output layer of a recurrent model, and resizing them."""

from typing import Any

from torch import nn


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
