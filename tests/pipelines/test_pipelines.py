"""`pipeline("translation")`: what goes in and what comes out."""

import copy
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from family_cases import AGGREGATED_MARIAN, CAPS_NMT, END, FAMILIES, GDR_MARIAN, GDR_RNMT, PAD, Case, Family
from pipeline_models import (
    LONG,
    LONGEST,
    MARIAN,
    NAMES,
    TEXTS,
    TOKENIZER,
    UNKNOWN,
    WITH_POSITIONS,
    WORDS,
    built,
    expected,
    joined,
    make,
    make_tokenizer,
    texts_of,
)
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

from hf_capsule_mt import (
    CapsuleTranslationPipeline,
    Shortlist,
    analysis,
    explain,
    quantize_for_cpu,
    score_pairs,
    translate,
)
from hf_capsule_mt.pipelines import split_sentences

# What goes in


@pytest.mark.parametrize("name", NAMES)
def test_from_a_folder_without_any_flag(name: str, folders: dict[str, str]) -> None:
    translator = pipeline("translation", model=folders[name], device="cpu")
    assert type(translator) is CapsuleTranslationPipeline and type(translator.model) is type(built(name))
    assert len(set(expected(name))) >= 4, "the sentences must differ in their translations"
    assert texts_of(translator(TEXTS)) == expected(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("side", "beams"), [("right", 3), ("left", 1)])
def test_a_batch_is_translated_as_its_sentences_are(name: str, side: str, beams: int) -> None:
    translator = make(name, make_tokenizer(padding_side=side))
    alone = [translator(text, num_beams=beams) for text in TEXTS]
    assert [texts_of(one) for one in alone] == [[text] for text in expected(name, num_beams=beams)]
    for size in (2, 8):
        assert texts_of(translator(TEXTS, batch_size=size, num_beams=beams)) == [
            text for [text] in map(texts_of, alone)
        ]
    assert translator.tokenizer.padding_side == side


def test_forms_of_input(folders: dict[str, str], tmp_path: Path) -> None:
    translator = pipeline("translation_en_to_de", model=folders[CAPS_NMT.name], batch_size=2, device="cpu")
    assert translator.task == "translation_en_to_de"
    wanted = expected(CAPS_NMT.name)
    assert translator(TEXTS[0]) == [{"translation_text": wanted[0]}]
    data = datasets.Dataset.from_dict({"en": TEXTS, "number": range(5)})
    for whole in (TEXTS, tuple(TEXTS), data["en"]):
        assert translator(whole) == [{"translation_text": text} for text in wanted]
    path = tmp_path / "source.txt"
    path.write_text("\n".join(TEXTS))
    with open(path) as lines:
        streams = [KeyDataset(data, "en"), (text for text in TEXTS), map(str, TEXTS), lines]
        for stream in streams:
            assert list(translator(stream)) == [[{"translation_text": text}] for text in wanted]
    assert translator([]) == []


def test_a_generator_is_read_as_its_results_are_taken() -> None:
    read: list[int] = []

    def endless() -> Iterator[str]:
        for number in range(10**9):
            read.append(number)
            yield TEXTS[number % 5]

    found = iter(make(CAPS_NMT.name)(endless(), batch_size=2))
    first = [next(found), next(found)]
    assert len(read) <= 3, "two sentences, and the first of a generator is looked at"
    assert [texts_of(one) for one in first] == [[text] for text in expected(CAPS_NMT.name)[:2]]


@pytest.mark.parametrize("wrong", [3, None, {"en": "ba"}, ["ba", 3], [["ba"]]])
def test_what_is_no_text_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be a string"):
        make(MARIAN)(wrong)


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_blank_text_has_the_empty_translation(blank: str) -> None:
    translator, wanted = make(GDR_MARIAN.name), expected(GDR_MARIAN.name)
    assert translator(blank) == [{"translation_text": ""}]
    found = translator([blank, *TEXTS, blank], batch_size=3)
    assert texts_of(found) == ["", *wanted, ""]
    reports = {"return_scores": True, "return_routings": True, "return_coverage": True}
    found = translator(blank, num_beams=2, num_return_sequences=2, **reports)
    empty = {"translation_text": "", "score": 0.0, "routings": {}}
    assert [{key: value for key, value in one.items() if key != "coverage"} for one in found] == [empty, empty]
    assert found[0]["coverage"] == {
        "words": [],
        "untranslated": [],
        "repeated": [],
        "bow_accuracy": None,
        "warnings": [],
    }


# Long input


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four… five", ["One.", "Two!", "Three?", "Four…", "five"]),
        ("It is 3.5 m, e.g.this. Yes", ["It is 3.5 m, e.g.this.", "Yes"]),
        ('He said: "Go!" She went. ', ['He said: "Go!"', "She went."]),
        ("Really?! Yes...\nNo.", ["Really?!", "Yes...", "No."]),
        ("他来了。她走了！「好。」真的？", ["他来了。", "她走了！", "「好。」", "真的？"]),
        ("no end", ["no end"]),
        (". .", [".", "."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences
    assert "".join(sentences).replace(" ", "") == "".join(text.split()), "nothing may be lost"


@pytest.mark.parametrize("name", WITH_POSITIONS)
def test_long_text_is_translated_sentence_by_sentence(name: str) -> None:
    sentences = split_sentences(LONG)
    cut = "so so su" + " sa" * 30 + "."
    assert sentences == ["ba de fi.", "go lu ma ne!", "pi ro?", cut, "de"] and len(TOKENIZER(cut)["input_ids"]) == 35
    translator = make(name)
    first, *inner, last = expected(name, ["go lu", *sentences, "de"])
    whole = joined(inner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (1, 3, 20):
            assert texts_of(translator(["go lu", LONG, "de"], batch_size=size)) == [first, whole, last]
            assert texts_of(translator(LONG, batch_size=size)) == [whole]


def test_a_sentence_that_is_too_long_is_cut_with_a_warning() -> None:
    translator = make(MARIAN)
    short = "ba de fi go lu. "
    with pytest.warns(UserWarning, match="'ro so so.*'… has 53 tokens and is cut off after 40"):
        found = translator(short + "ro so" + " so" * 50)
    assert texts_of(found) == [joined(expected(MARIAN, [short, "ro so" + " so" * 37]))]


def test_truncation() -> None:
    long = "ba de fi. " + "go " * 50
    cut = "ba de fi. " + "go " * 35
    assert len(TOKENIZER(cut)["input_ids"]) == 40
    with pytest.warns(UserWarning, match="has 52 tokens"):  # <unk> is a special token, but none to keep
        assert texts_of(make(MARIAN)("ba" + " xx" * 50, long_input="truncate")) == expected(
            MARIAN, ["ba" + " xx" * 38]
        )
    tokenizer = make_tokenizer()
    before = tokenizer.backend_tokenizer.to_str()
    makes: tuple[dict[str, Any], ...] = ({"long_input": "truncate"}, {})
    for always, once in (makes, makes[::-1]):
        with pytest.warns(UserWarning, match="'ba de fi.*has 55 tokens and is cut off after 40"):
            assert texts_of(make(MARIAN, tokenizer, **always)(long, **once)) == expected(MARIAN, [cut])
    assert tokenizer.backend_tokenizer.to_str() == before, "a limit must not stay with the tokenizer"


@pytest.mark.parametrize("name", [GDR_RNMT.name, CAPS_NMT.name])
def test_recurrent_models_read_any_length(name: str) -> None:
    translator = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = texts_of(translator(LONG))
        pieces = texts_of(translator(LONG, max_source_length=36))
    tokens = built(name).generate(**TOKENIZER(LONG, return_tensors="pt"))
    assert whole == TOKENIZER.batch_decode(tokens, skip_special_tokens=True)
    assert pieces == [joined(expected(name, split_sentences(LONG)))] != whole


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (MARIAN, {"long_input": "wrap"}, "long_input='wrap': must be 'split' or 'truncate'"),
        (MARIAN, {"max_source_length": 41}, "max_source_length=41: .*at most 40"),
        (CAPS_NMT.name, {"max_source_length": 1}, "max_source_length=1: must be at least 2"),
        (MARIAN, {"return_routings": True}, "MarianMTModel routes nothing"),
        (GDR_MARIAN.name, {"return_routings": "json"}, "return_routings='json': must be True, False or 'lists'"),
        (MARIAN, {"return_coverage": True}, "return_coverage=True: MarianMTModel"),
        (CAPS_NMT.name, {"return_coverage": True}, "past_future=None"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **options)
    with pytest.raises(ValueError, match=message):
        make(name)("ba", **options)


SIZES = {"vocab_size": 61, "d_model": 16, "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}


def stock(kind: Any, config: Any, **options: Any) -> Any:
    """A model of Transformers that translates different sentences differently."""
    torch.manual_seed(5)
    model = kind(config(**SIZES, **options)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    settings = {"bad_words_ids": [[PAD], [UNKNOWN]], "min_length": 1 + LONGEST, "max_length": 1 + LONGEST}
    model.generation_config.update(**settings, no_repeat_ngram_size=1, forced_eos_token_id=None)
    return model


def assert_translates_as(translator: Any, sources: list[str]) -> None:
    wanted = translate(translator.model, TOKENIZER, sources)
    assert len(set(wanted)) >= 3 and texts_of(translator(TEXTS, batch_size=2)) == wanted


def test_bart() -> None:
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    widths = {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 40, "bos_token_id": END}
    model = stock(BartForConditionalGeneration, BartConfig, **sides, **widths)
    model.generation_config.forced_bos_token_id = 7
    translator = pipeline("translation", model=model, tokenizer=TOKENIZER, device="cpu")
    assert_translates_as(translator, TEXTS)
    assert all(text.startswith(WORDS[1]) for text in texts_of(translator(TEXTS)))


def test_t5_gets_the_instruction_that_its_checkpoint_has_for_the_task() -> None:
    shape = {"d_kv": 8, "d_ff": 20, "num_layers": 2, "num_heads": 2, "task_specific_params": T5_TASKS}
    model = stock(T5ForConditionalGeneration, T5Config, **shape)
    for task, prefix in (("translation_ba_to_de", "fu fo: "), ("translation_de_to_ba", ""), ("translation", "")):
        translator = pipeline(task, model=model, tokenizer=TOKENIZER, device="cpu")
        assert_translates_as(translator, [prefix + text for text in TEXTS])
    model.config.prefix = "lu "
    assert_translates_as(translator, ["lu " + text for text in TEXTS])


T5_TASKS = {"translation_ba_to_de": {"prefix": "fu fo: ", "num_beams": 4}, "summarization": {"prefix": "su "}}


def test_other_models_are_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="GPT2LMHeadModel is no encoder-decoder"):
        pipeline("translation", model=model, tokenizer=TOKENIZER, device="cpu")


# What comes out


def count(text: str) -> int:
    """Tokens of a translation as the model wrote it: it may have been stopped before the end token."""
    return min(LONGEST, len(TOKENIZER(text)["input_ids"]))


def assert_scores(model: Any, sources: list[str], found: list[dict[str, Any]], penalty: float) -> None:
    """Those of translations that end by themselves, by the other route."""
    ended = [
        (source, one)
        for source, one in zip(sources, found, strict=True)
        if len(one["translation_text"].split()) < LONGEST
    ]
    assert len(ended) >= 2
    targets = [one["translation_text"] for _, one in ended]
    scores = score_pairs(model, TOKENIZER, [source for source, _ in ended], targets, length_penalty=penalty)
    assert [one["score"] for _, one in ended] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("penalty", [None, 0.0, 2.0])
def test_scores_are_those_of_force_decoding(name: str, penalty: float | None) -> None:
    options = {} if penalty is None else {"length_penalty": penalty}
    translator = make(name, return_scores=True, batch_size=3, num_beams=2, num_return_sequences=2)
    best = translator(TEXTS, **options)
    assert [one[0]["translation_text"] for one in best] == expected(name, num_beams=2, **options)
    first, second = zip(*best, strict=True)
    assert_scores(built(name), 2 * TEXTS, [*first, *second], 1.0 if penalty is None else penalty)


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_greedy_search(name: str) -> None:
    found = make(name)(TEXTS, batch_size=5, return_scores=True)
    assert texts_of(found) == expected(name)
    assert_scores(built(name), TEXTS, found, 1.0)


def test_the_score_of_a_split_text_counts_all_of_its_tokens() -> None:
    translator = make(MARIAN, return_scores=True, length_penalty=1.0)
    parts = translator(split_sentences(LONG))
    lengths = [count(one["translation_text"]) for one in parts]
    total = sum(one["score"] * length for one, length in zip(parts, lengths, strict=True))
    assert translator(LONG)[0]["score"] == pytest.approx(total / sum(lengths), abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_routings_are_those_of_the_model(family: Any) -> None:
    model = built(family.name)
    found = make(family.name)(TEXTS, batch_size=5, num_beams=2, num_return_sequences=2, return_routings=True)
    for source, translations in zip(TEXTS, found, strict=True):
        for one in translations:
            target = TOKENIZER(one["translation_text"], return_tensors="pt")["input_ids"][:, :LONGEST]
            with torch.no_grad():
                outputs = model(**TOKENIZER(source, return_tensors="pt"), labels=target, output_routings=True)
            assert set(one["routings"]) == set(family.routing_sites(model.config)) == set(outputs.routings)
            for site, assignments in outputs.routings.items():
                torch.testing.assert_close(one["routings"][site], assignments, atol=1e-5, rtol=0)


@pytest.mark.parametrize("text", ["ba \ud83d de", "\udcff"])
def test_half_a_character_is_named(text: str) -> None:
    place = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").index("\ufffd")
    for given in (text, ["ba", text]):
        with pytest.raises(ValueError, match=f"at position {place}: a lone surrogate is half of a character"):
            make(MARIAN)(given)
    assert texts_of(make(MARIAN)(["ba \U0001f600 de"])), "a whole one is a character"


@pytest.mark.parametrize("name", [GDR_MARIAN.name, GDR_RNMT.name])
def test_reports_go_through_json(name: str) -> None:
    reports = {"return_scores": True, "return_routings": "lists", "return_coverage": True}
    found = make(name)(["ba de", ""], **reports)
    assert json.loads(json.dumps(found)) == found
    assert found[0]["coverage"]["words"] == ["ba", "de"] and found[1]["routings"] == {}
    tensors = make(name)("ba de", return_routings=True)[0]["routings"]
    assert found[0]["routings"] == {site: value.tolist() for site, value in tensors.items()}


def test_routings_of_a_split_text_are_refused() -> None:
    with pytest.raises(ValueError, match="return_routings=True: a text is too long and was split"):
        make(GDR_MARIAN.name)(LONG, return_routings=True)


@pytest.mark.parametrize("name", [GDR_MARIAN.name, GDR_RNMT.name])
def test_coverage_is_that_of_explain(name: str) -> None:
    found = make(name)(TEXTS[:3], batch_size=3, num_beams=2, num_return_sequences=2, return_coverage=True)
    for source, translations in zip(TEXTS, found, strict=False):
        for one in translations:
            coverage = explain(built(name), TOKENIZER, source, one["translation_text"]).coverage
            assert one["coverage"] == coverage.as_dict() and coverage.words == tuple(source.split())
            assert one["coverage"]["warnings"] == coverage.warnings()


def test_coverage_of_a_split_text_is_that_of_its_sentences() -> None:
    translator = make(GDR_MARIAN.name, return_coverage=True)
    whole, parts = translator(LONG)[0]["coverage"], translator(split_sentences(LONG))
    assert whole["words"] == LONG.split()
    for field in ("untranslated", "repeated"):
        assert whole[field] == [value for one in parts for value in one["coverage"][field]]


def test_coverage_needs_the_bag_of_words() -> None:
    model = Case(GDR_RNMT, "guided_of_other_sizes").build()
    with pytest.raises(ValueError, match="bow_loss_weight=0;"):
        pipeline("translation", model=model, tokenizer=TOKENIZER, device="cpu")("ba", return_coverage=True)


@pytest.mark.parametrize("name", ["return_coverage", "return_routings"])
def test_reports_without_the_package_say_what_they_need(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hf_capsule_mt.analysis.pipeline_reports", None)
    monkeypatch.delattr(analysis, "pipeline_reports", raising=False)
    with pytest.raises(ImportError, match=f"{name}=True needs the package hf_capsule_mt"):
        make(GDR_MARIAN.name)("ba", **{name: True})


# Generation


def test_generation_parameters_of_all_calls_of_a_call_and_of_a_config() -> None:
    name = AGGREGATED_MARIAN.name
    short, long = expected(name, max_length=4), expected(name, max_length=9)
    assert short != long
    translator = make(name, max_length=4, num_beams=1)
    config = GenerationConfig(max_length=9, return_dict_in_generate=True)
    kept = copy.deepcopy((config.to_dict(), built(name).generation_config.to_dict()))
    assert texts_of(translator(TEXTS)) == short
    assert texts_of(translator(TEXTS, max_length=9)) == long
    assert texts_of(translator(TEXTS)) == short
    assert texts_of(make(name)(TEXTS, generation_config=config)) == long
    assert texts_of(make(name, generation_config=config)(TEXTS)) == long
    assert (config.to_dict(), built(name).generation_config.to_dict()) == kept


def test_unlimited_translations_are_limited_by_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(name: str, texts: Any, **options: Any) -> list[int]:
        model = copy.deepcopy(built(name))
        model.generation_config.max_length = None
        asked: list[int] = []
        generate = model.generate

        def watched(**settings: Any) -> Any:
            asked.append(settings.get("max_new_tokens") or settings["generation_config"].max_new_tokens)
            return generate(**{**settings, "max_new_tokens": 3})

        monkeypatch.setattr(model, "generate", watched)
        pipeline("translation", model=model, tokenizer=TOKENIZER, device="cpu", **options)(texts)
        return asked

    assert limits(CAPS_NMT.name, ["ba", "ba de fi"], batch_size=2) == [58]
    assert limits(CAPS_NMT.name, ["ba", "ba de fi"]) == [54, 58]
    assert limits(MARIAN, ["ba"]) == [40]
    assert limits(MARIAN, ["ba"], max_new_tokens=5) == [5]


def test_a_model_in_training_is_left_in_training() -> None:
    model = copy.deepcopy(built(AGGREGATED_MARIAN.name)).train()
    for layer in model.modules():
        layer.dropout = 0.9 if isinstance(getattr(layer, "dropout", None), float) else getattr(layer, "dropout", None)
    translator = pipeline("translation", model=model, tokenizer=TOKENIZER, device="cpu")
    assert texts_of(translator(TEXTS)) == expected(AGGREGATED_MARIAN.name) and model.training


@pytest.mark.parametrize("family", [CAPS_NMT, AGGREGATED_MARIAN], ids=lambda family: family.name)
def test_int8_models(family: Family) -> None:
    quantized = quantize_for_cpu(built(family.name))
    translator = pipeline("translation", model=quantized, tokenizer=TOKENIZER, device="cpu")
    wanted = translate(quantized, TOKENIZER, TEXTS)
    found = translator(TEXTS, batch_size=2, return_scores=True, return_routings=True)
    assert texts_of(found) == wanted
    assert set(found[0]["routings"]) == set(family.routing_sites(quantized.config))
    assert_scores(quantized, TEXTS, found, 1.0)


def test_int8_models_with_a_shortlist() -> None:
    model = built(CAPS_NMT.name)
    shortlist = Shortlist.from_alignments(model, TOKENIZER, TEXTS, TEXTS, frequent=1, translations=1)
    quantized = quantize_for_cpu(model, shortlist)
    translator = pipeline("translation", model=quantized, tokenizer=TOKENIZER, device="cpu")
    found = translator(TEXTS, return_scores=True)
    assert texts_of(found) == [translate(quantized, TOKENIZER, text) for text in TEXTS]
    assert texts_of(found) != translate(quantize_for_cpu(model), TOKENIZER, TEXTS)
    assert_scores(quantized, TEXTS, found, 1.0)  # over the whole vocabulary
    shortlist.digest = "another"
    with pytest.raises(ValueError, match="the shortlist does not fit the tokenizer"):
        translator(TEXTS)


@pytest.mark.parametrize("name", [CAPS_NMT.name, MARIAN])
def test_int8_checkpoints(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quantized = quantize_for_cpu(built(name))
    made = pipeline("translation", model=quantized, tokenizer=TOKENIZER, device="cpu")
    made.save_pretrained(tmp_path)
    wanted = texts_of(made(TEXTS))
    loaded = pipeline("translation", model=str(tmp_path), device="cpu")
    assert type(loaded.model) is type(quantized) and texts_of(loaded(TEXTS)) == wanted
    with caplog.at_level("WARNING", logger="transformers"):
        loaded = pipeline("translation", model=str(tmp_path), device="cpu", dtype="bfloat16")
    assert texts_of(loaded(TEXTS)) == wanted and loaded.model.dtype == torch.float32
    (tmp_path / "int8.safetensors").unlink()
    with pytest.raises(ValueError, match="does not appear to have a file named int8.safetensors"):
        pipeline("translation", model=str(tmp_path), device="cpu")


class OfManyLanguages(PreTrainedTokenizerFast):
    """Marks languages as those of mBART, NLLB and others do; here with the words of the vocabulary."""

    src_lang = tgt_lang = "ba"

    def _build_translation_inputs(
        self, raw_inputs: Any, return_tensors: Any, src_lang: Any, tgt_lang: Any, **rest: Any
    ):
        self.src_lang, self.tgt_lang = src_lang, tgt_lang
        inputs = self(f"{src_lang} {raw_inputs}", return_tensors=return_tensors, **rest)
        inputs["forced_bos_token_id"] = self.convert_tokens_to_ids(tgt_lang)
        return inputs


def test_tokenizers_that_mark_languages() -> None:
    tokenizer = make_tokenizer(OfManyLanguages)
    wanted = translate(
        built(MARIAN), TOKENIZER, [f"de {text}" for text in TEXTS], forced_bos_token_id=WORDS.index("fu") + 6
    )
    assert all(text.startswith("fu") for text in wanted)
    translator = pipeline("translation_de_to_fu", model=built(MARIAN), tokenizer=tokenizer, batch_size=2, device="cpu")
    assert texts_of(translator(["", *TEXTS])) == ["", *wanted]
    assert texts_of(translator(TEXTS, src_lang="su", tgt_lang="so")) != wanted
    assert texts_of(make(MARIAN, tokenizer)(TEXTS, src_lang="de", tgt_lang="fu")) == wanted
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("ba", "ba")
