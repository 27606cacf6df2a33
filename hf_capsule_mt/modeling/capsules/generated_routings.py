"""`generate(output_routings=True)`: the routings of whole translations, whatever search found them.

Legend: `B` sentences, `N` = B times `num_return_sequences`, `L` length of the longest translation.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, logging

logger = logging.get_logger(__name__)

# What a call of `generate` says of the source.
SOURCE = ("input_ids", "inputs_embeds", "attention_mask", "encoder_outputs")


class GeneratedRoutings:
    """Mixin; list it before `GenerationMixin`."""

    config: Any
    generation_config: Any

    def generate(self, inputs: Any = None, *args: Any, output_routings: bool | None = None, **kwargs: Any) -> Any:
        """As in Transformers.

        With `output_routings=True` and `return_dict_in_generate=True` the output has `routings` too. These are what
        one call of the model with the translations as `decoder_input_ids` returns, see [`CapsuleSeq2SeqLMOutput`]:
        the position of a word is that of the step which wrote it. Positions after an end token are of no use.
        """
        if output_routings is None:
            output_routings = self._config_asks_for_routings(args, kwargs)
        if output_routings:
            self._warn_without_dict({"generation_config": next(iter(args), None), **kwargs})
        words = kwargs.get("input_ids", inputs)
        if output_routings and isinstance(words, Tensor) and kwargs.get("attention_mask") is None:
            # `generate` alone would infer the mask from the padding, and the call for the routings would have none.
            kwargs["attention_mask"] = words.ne(self.config.pad_token_id).long()
        source = self._source_of(inputs, kwargs) if output_routings else {}
        generated = super().generate(inputs, *args, **kwargs)  # type: ignore[misc]
        if output_routings and isinstance(generated, ModelOutput):
            generated["routings"] = self._routings_of(generated["sequences"], source, kwargs)
        return generated

    def _config_asks_for_routings(self, args: tuple[Any, ...], call: dict[str, Any]) -> bool | None:
        """What the generation config of this call says, or else that of the model."""
        configs = [*args[:1], call.get("generation_config"), self.generation_config]
        asked = (getattr(config, "output_routings", None) for config in configs)
        return next((one for one in asked if one is not None), None)

    def _warn_without_dict(self, call: dict[str, Any]) -> None:
        wanted = call.get("return_dict_in_generate")
        if wanted is None:
            config = call.get("generation_config") or self.generation_config
            wanted = config.return_dict_in_generate
        if not wanted:
            logger.warning_once("generate: output_routings=True has no effect without return_dict_in_generate=True")

    def _source_of(self, inputs: Tensor | None, call: dict[str, Any]) -> dict[str, Any]:
        """What the arguments of `generate` say of the source, as arguments of the model."""
        source = {name: call[name] for name in SOURCE if call.get(name) is not None}
        if inputs is not None:
            source["input_ids"] = inputs
        encoded = source.get("encoder_outputs")
        if encoded is not None:
            source = {name: value for name, value in source.items() if name == "attention_mask"}
            # A copy: the search repeats the rows of what it is given for every beam, in place.
            kept = dict(encoded) if isinstance(encoded, ModelOutput) else {"last_hidden_state": encoded[0]}
            kind = type(encoded) if isinstance(encoded, ModelOutput) else BaseModelOutput
            source["encoder_outputs"] = kind(**kept)
        return source

    @torch.no_grad()
    def _routings_of(self, sequences: Tensor, source: dict[str, Any], call: dict[str, Any]) -> dict[str, Tensor]:
        """`sequences` `[N, 1 + L]`; `source` holds `B` rows, `call` are the arguments of `generate`."""
        words = sequences[:, :-1]
        target: dict[str, Any] = {"decoder_input_ids": words}
        prefix_mask = call.get("decoder_attention_mask")
        if prefix_mask is not None:
            prefix_mask = prefix_mask.repeat_interleave(len(words) // len(prefix_mask), dim=0)
            rest = prefix_mask.new_ones(len(words), words.shape[1] - prefix_mask.shape[1])
            target["decoder_attention_mask"] = torch.cat([prefix_mask, rest], dim=1)
        model: Any = self
        source = {name: _repeated(value, len(words)) for name, value in source.items()}
        return model(**source, **target, use_cache=False, output_routings=True, return_dict=True).routings


def _repeated(value: Any, count: int) -> Any:
    """Every row of a tensor, or of the tensors in a model's output, as often as makes `count` rows."""
    if isinstance(value, Tensor):
        return value.repeat_interleave(count // len(value), dim=0)
    if isinstance(value, ModelOutput):
        tensors = {name: _repeated(item, count) for name, item in value.items() if isinstance(item, Tensor)}
        return type(value)(**tensors)
    return value
