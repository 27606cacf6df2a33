"""`pipeline("translation")`, which Transformers 5 does not have any more, for any encoder-decoder.

A text is translated in one piece where the model can read it, else sentence by sentence. Sources are padded on the
right, whatever the tokenizer says: the pieces of a batch then have the positions that they have alone.

Legend: `N` sequences, `T` target positions, `V` target vocabulary.
"""

import copy
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import Pipeline

TASK = "translation"
LANGUAGE_PAIR = re.compile(rf"{TASK}_(.+)_to_(.+)")
PREPARING = ("src_lang", "tgt_lang", "long_input", "max_source_length")
REPORTS = ("return_scores", "return_routings", "return_coverage")
# A full stop of Chinese and Japanese needs no space behind it.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|$)|[。！？]+[\"'”’」』）]*")
# Half of a character above U+FFFF, as `json.loads` and errors="surrogateescape" leave it.
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Piece:
    """What the model reads at once: a text, or a sentence of one, whole or cut off."""

    text: str
    tokens: list[int]
    first: int | None  # the token that a translation must begin with, for models of many languages


@dataclass
class Translated:
    """One translation of a piece, and what is wanted of it; log probability and length are those of its tokens."""

    text: str
    log_probability: float = 0.0
    length: int = 0
    routings: Any = None
    coverage: Any = None


class CapsuleTranslationPipeline(Pipeline):
    """Translates a text, or a list, generator, data set or column of texts.

    After `import hf_capsule_mt` it is what `transformers.pipeline` makes for `"translation"` and for
    `"translation_xx_to_yy"`, with every model of [`AutoModelForSeq2SeqLM`]. A text gives a list with a dictionary for
    each of its translations, one unless `num_return_sequences` says otherwise; a list of texts with one translation
    each gives a list of dictionaries; what is no list or text is read and translated as its results are taken. A
    blank text has the empty translation. A model of [`quantize_for_cpu`] needs `device="cpu"` where there is a GPU.

    Parameters, of a call or for all calls of a pipeline that is made with them:

        batch_size: pieces that are translated at once.
        long_input: `"split"` (default) translates a text that is too long sentence by sentence and joins the
            translations with spaces; `"truncate"` cuts it off. A text or sentence that is cut is named in a warning.
        max_source_length: how many tokens are too many; the positions that the model has, where it has any, are the
            default and the most.
        return_scores: adds `score`, the sum of the log probabilities of the translation's tokens, the end token among
            them, divided by their number to the power of the length penalty.
        return_routings: adds `routings`, those that the model returns with `output_routings=True` for this source and
            the tokens of this translation as labels: tensors by the name of the routing site, or with `"lists"`
            nested lists, which JSON can hold. For models of ours, and texts that are not split.
        return_coverage: adds `coverage`, that of [`explain`] as a dictionary of lists: the source `words`, how likely
            each is `untranslated` or `repeated`, `warnings`, a line for each word that probably is, and
            `bow_accuracy`, how far they can be believed. For models with past and future and a bag-of-words loss.
        src_lang, tgt_lang: for tokenizers that mark them; a task `translation_xx_to_yy` says them too.
        Others, `num_beams` above all, go to `model.generate`. Where nothing limits the length, a translation may be
            twice as long as the longest source of its batch and 50 tokens more.

    ```python
    >>> import hf_capsule_mt
    >>> from transformers import pipeline

    >>> translator = pipeline("translation", model="runs/demo")
    >>> translator("The sister wrote a letter.", num_beams=4)
    [{'translation_text': 'Die Schwester schrieb einen Brief.'}]
    ```"""

    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False

    def __call__(self, inputs: Any, *args: Any, batch_size: int | None = None, **kwargs: Any) -> Any:
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)
            if not inputs:
                return []
        elif isinstance(inputs, Iterable) and not isinstance(inputs, (str, Mapping, Dataset)):
            inputs = (text for text in inputs)  # of all iterators the base class streams generators alone
        rows = batch_size or self._batch_size or 1
        found = super().__call__(inputs, *args, batch_size=batch_size, rows=rows, **kwargs)
        if isinstance(inputs, list) and all(len(translations) == 1 for translations in found):
            return [translations[0] for translations in found]
        return found

    def _sanitize_parameters(self, **parameters: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        model, config = type(self.model).__name__, self.model.config
        if not config.is_encoder_decoder:
            raise ValueError(f"{model} is no encoder-decoder: translation needs one")
        preparing = {name: parameters.pop(name) for name in PREPARING if name in parameters}
        if preparing.get("long_input", "split") not in ("split", "truncate"):
            raise ValueError(f"long_input={preparing['long_input']!r}: must be 'split' or 'truncate'")
        longest, positions = preparing.get("max_source_length"), self._positions()
        if longest is not None and not 2 <= longest <= (positions or longest):
            most = f"at most {positions}, the positions of the model" if positions else "has no upper bound here"
            raise ValueError(f"max_source_length={longest}: must be at least 2 and {most}")
        if parameters.get("return_routings", False) not in (None, False, True, "lists"):
            raise ValueError(f"return_routings={parameters['return_routings']!r}: must be True, False or 'lists'")
        if parameters.get("return_routings") and "output_routings" not in signature(self.model.forward).parameters:
            raise ValueError(f"return_routings=True: {model} routes nothing; use a model of hf_capsule_mt")
        kind, weight = getattr(config, "past_future", None), getattr(config, "bow_loss_weight", 0.0)
        if parameters.get("return_coverage") and (kind in (None, "none", "recurrent") or not weight):
            raise ValueError(
                f"return_coverage=True: {model} has past_future={kind!r} and bow_loss_weight={weight}; coverage needs "
                "a model trained with past_future='guided_routing', 'classifier' or 'attention' and that loss"
            )
        return preparing, parameters, {}

    def preprocess(self, input_: Any, **parameters: Any) -> dict[str, Any]:
        """The pieces of a text; none of a blank one."""
        if not isinstance(input_, str):
            raise ValueError(
                f"{str(input_)[:60]!r} is a {type(input_).__name__}: a text must be a string; of a data set with "
                "several columns give one, KeyDataset(dataset, name)"
            )
        half = SURROGATE.search(input_)
        if half:
            raise ValueError(
                f"{input_[:60]!r} holds {half[0]!r} at position {half.start()}: a lone surrogate is half of a "
                "character and no text; decode its bytes again, with errors='replace' if they are damaged"
            )
        if not input_.strip():
            return {"pieces": ()}
        pair = LANGUAGE_PAIR.fullmatch(self.task or "") or (None, None, None)
        languages = (parameters.get("src_lang") or pair[1], parameters.get("tgt_lang") or pair[2])
        longest = parameters.get("max_source_length") or self._positions()
        pieces = [self._encode(input_, *languages)]
        if longest is not None and len(pieces[0].tokens) > longest:
            if parameters.get("long_input", "split") == "split":
                pieces = [self._encode(sentence, *languages) for sentence in split_sentences(input_)]
            pieces = [self._cut(piece, longest) for piece in pieces]
        return {"pieces": tuple(pieces)}

    def _forward(self, input_tensors: Any, **parameters: Any) -> Any:
        rows = parameters.pop("rows", 1)
        reports = {name: parameters.pop(name, False) for name in REPORTS}
        wanted = {name for name, value in reports.items() if value}
        as_lists = reports["return_routings"] == "lists"
        texts = input_tensors["pieces"]
        is_batch = isinstance(texts, list)
        batch = texts if is_batch else [texts]
        if "return_routings" in wanted and any(len(pieces) > 1 for pieces in batch):
            raise ValueError(
                "return_routings=True: a text is too long and was split, and the model routes each of its sentences; "
                "give it the sentences, or long_input='truncate'"
            )
        pieces = [piece for text in batch for piece in text]
        translated = []
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            for start in range(0, len(pieces), rows):
                translated += self._translate(pieces[start : start + rows], wanted, parameters)
        finally:
            for module, training in modes:
                module.training = training
        found, rest = [], iter(translated)
        for text in batch:
            parts = [next(rest) for _ in text]
            blank = [()] * (self._setting("num_return_sequences", parameters) or 1)
            ranks = zip(*parts, strict=True) if parts else blank  # the best of all pieces, the second best, …
            found.append([self._record(rank, wanted, parameters, as_lists) for rank in ranks])
        return {"found": found if is_batch else found[0]}

    def postprocess(self, model_outputs: Any, **parameters: Any) -> list[dict[str, Any]]:
        return model_outputs["found"]

    def _prefix(self) -> str:
        """What the checkpoint wants before a text, as those of T5 do: its instruction for the task."""
        config = self.model.config
        of_task = (getattr(config, "task_specific_params", None) or {}).get(self.task) or {}
        return of_task.get("prefix") or getattr(config, "prefix", None) or ""

    def _positions(self) -> int | None:
        """The longest source that the model can read; None if it reads any."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def _setting(self, name: str, generation: dict[str, Any]) -> Any:
        """What `generate` will take for this parameter; None for its own default."""
        given = generation.get("generation_config")
        for settings in (generation, vars(given) if given else {}, vars(self.model.generation_config)):
            if settings.get(name) is not None:
                return settings[name]
        return None

    def _encode(self, text: str, src_lang: str | None, tgt_lang: str | None) -> Piece:
        tokenizer: Any = self.tokenizer
        build = getattr(tokenizer, "_build_translation_inputs", None)
        if build is None:
            return Piece(text, list(tokenizer(self._prefix() + text, verbose=False)["input_ids"]), None)
        before = {name: getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")}
        try:
            encoded = build(text, return_tensors=None, src_lang=src_lang, tgt_lang=tgt_lang, verbose=False)
        finally:
            # It leaves the tokenizer with these languages, which is somebody else's too.
            for name, value in before.items():
                if getattr(tokenizer, name, None) != value:
                    setattr(tokenizer, name, value)
        return Piece(text, list(encoded["input_ids"]), encoded.get("forced_bos_token_id"))

    def _cut(self, piece: Piece, longest: int) -> Piece:
        """As much of the piece as the model can read, up to the special tokens that it ends in."""
        count = len(piece.tokens)
        if count <= longest:
            return piece
        warnings.warn(f"{piece.text[:60]!r}… has {count} tokens and is cut off after {longest}", stacklevel=2)
        tokenizer: Any = self.tokenizer
        marks = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        end = sum(1 for _ in takewhile(marks.__contains__, reversed(piece.tokens)))
        # Here and not by the tokenizer, which would keep the limit, and save it with itself.
        tokens = piece.tokens[: longest - end] + piece.tokens[count - end :]
        return Piece(tokenizer.decode(tokens, skip_special_tokens=True), tokens, piece.first)

    def _translate(self, pieces: list[Piece], wanted: set[str], parameters: dict[str, Any]) -> list[list[Translated]]:
        """The translations of each piece, best first."""
        model: Any = self.model
        tokenizer: Any = self.tokenizer
        sources = [torch.tensor(piece.tokens, device=self.device) for piece in pieces]
        inputs = {
            "input_ids": pad_sequence(sources, True, tokenizer.pad_token_id),
            "attention_mask": pad_sequence([torch.ones_like(source) for source in sources], True, 0),
        }
        tokens = model.generate(**inputs, **self._settings(parameters, inputs["input_ids"].shape[1], pieces[0].first))
        translated = [Translated(text) for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        count, lengths = len(translated) // len(pieces), self._lengths(tokens, parameters)
        if "return_scores" in wanted:
            inputs = {name: value.repeat_interleave(count, dim=0) for name, value in inputs.items()}
            logits = model(**inputs, decoder_input_ids=tokens[:, :-1], use_cache=False).logits  # [N, T, V]
            chances = logits.float().log_softmax(dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
            for one, row, length in zip(translated, chances, lengths, strict=True):
                one.log_probability, one.length = row[:length].sum().item(), length
        for index, one in enumerate(translated):
            if "return_routings" in wanted:
                pair = {"input_ids": sources[index // count], "decoder_input_ids": tokens[index, : lengths[index]]}
                pair = {name: value[None] for name, value in pair.items()}
                one.routings = model(**pair, use_cache=False, output_routings=True).routings
            if "return_coverage" in wanted:
                _, explain = _analysis()
                one.coverage = explain(model, tokenizer, pieces[index // count].text, one.text).coverage
        return [translated[start : start + count] for start in range(0, len(translated), count)]

    def _settings(self, parameters: dict[str, Any], longest: int, first: int | None) -> dict[str, Any]:
        """What `generate` is called with, for sources of up to `longest` tokens."""
        extra: dict[str, Any] = {"return_dict_in_generate": False}
        if first is not None:
            extra["forced_bos_token_id"] = first
        if not any(self._setting(name, parameters) for name in ("max_length", "max_new_tokens")):
            extra["max_new_tokens"] = min(2 * longest + 50, self._positions() or 2 * longest + 50)
        config = parameters.get("generation_config")
        if config is None:
            return {**parameters, **extra}
        config = copy.deepcopy(config)  # generate() takes either a config or single parameters
        config.update(**extra)
        return {**parameters, "generation_config": config}

    def _lengths(self, tokens: Tensor, parameters: dict[str, Any]) -> list[int]:
        """Target tokens of each of `tokens` `[N, 1 + T]`, up to and with the first end token."""
        ends = self._setting("eos_token_id", parameters)
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        ended = torch.isin(tokens[:, 1:], torch.tensor(ends, dtype=tokens.dtype, device=tokens.device)).long()
        return (ended.cumsum(dim=1) - ended == 0).sum(dim=1).tolist()

    def _record(
        self, parts: Sequence[Translated], wanted: set[str], parameters: dict[str, Any], as_lists: bool
    ) -> dict[str, Any]:
        """The translation of a text, of those of its pieces."""
        record: dict[str, Any] = {"translation_text": " ".join(part.text for part in parts if part.text)}
        if "return_scores" in wanted:
            penalty = self._setting("length_penalty", parameters)
            length = max(1, sum(part.length for part in parts)) ** (1.0 if penalty is None else penalty)
            record["score"] = sum(part.log_probability for part in parts) / length
        if "return_routings" in wanted:
            routings = parts[0].routings if parts else {}
            record["routings"] = {site: value.tolist() if as_lists else value for site, value in routings.items()}
        if "return_coverage" in wanted:
            coverage, _ = _analysis()
            record["coverage"] = coverage.joined(part.coverage for part in parts).as_dict()
        return record


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, whatever its language, as far as punctuation tells."""
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    sentences = [text[start:end].strip() for start, end in zip(ends, ends[1:], strict=False)]
    return [sentence for sentence in sentences if sentence]


def _analysis() -> tuple[Any, Any]:
    try:
        from hf_capsule_mt.analysis.explain import Coverage, explain
    except ImportError as error:
        raise ImportError("return_coverage=True needs the package hf_capsule_mt to be installed") from error
    return Coverage, explain
