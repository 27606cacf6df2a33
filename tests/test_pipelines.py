"""`pipeline("translation")`: what goes in, what comes out, and what stays of Transformers as it was."""

import copy
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers.pipelines as there
from family_cases import AGGREGATED_MARIAN, CAPS_NMT, END, FAMILIES, GDR_MARIAN, GDR_RNMT, PAD, Case, spread_weights
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    Pipeline,
    PreTrainedTokenizerFast,
    pipeline,
)
from transformers.pipelines.base import PipelineRegistry
from transformers.pipelines.pt_utils import KeyDataset

from hf_capsule_mt import CapsuleTranslationPipeline, explain, quantize_for_cpu, score_pairs, translate
from hf_capsule_mt.pipelines import split_sentences
from hf_capsule_mt.registration import register_translation

MARIAN = "marian"
NAMES = [MARIAN, *(family.name for family in FAMILIES)]
WITH_POSITIONS = [MARIAN, AGGREGATED_MARIAN.name, GDR_MARIAN.name]
# All that a family can report, in few layers; and how much the models like to end, so that most do before they must.
CONFIGS = dict(zip(NAMES[1:], ("em", "guided_with_aggregation", "classifier", "capsules"), strict=True))
END_BIAS = dict(zip(NAMES, (6.0, 1.0, 1.0, 0.5, 3.0), strict=True))
LONGEST, UNKNOWN = 9, 2  # tokens of a translation; the id of <unk>
WORDS = [consonant + vowel for vowel in "aeiou" for consonant in "bdfgklmnprs"]  # 55, and the six below: 61
TEXTS = ["ba de fi.", "go lu", "ma ne pi ro su ba ba!", "de", "so ru pa ne mi lo"]
LONG = "ba de fi. go lu ma ne! pi ro? so so su" + " sa" * 30 + ". de"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


def make_tokenizer(kind: Any = PreTrainedTokenizerFast, **options: Any) -> Any:
    """A token for each word and mark, so that a translation is cut again as the model wrote it."""
    vocabulary = ["</s>", "<pad>", "<unk>", ".", "!", "?", *WORDS]
    assert vocabulary[END] == "</s>" and vocabulary[PAD] == "<pad>" and len(vocabulary) == 61
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", END)])
    marks = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    names = ["input_ids", "attention_mask"]
    return kind(tokenizer_object=backend, model_input_names=names, model_max_length=40, **marks, **options)


TOKENIZER = make_tokenizer()


@cache
def built(name: str) -> Any:
    """A model that translates different sentences differently, and ends after different lengths."""
    if name == MARIAN:
        sizes = {key: value for key, value in AGGREGATED_MARIAN.sizes.items() if key in vars(MarianConfig())}
        torch.manual_seed(13)
        model = MarianMTModel(MarianConfig(**sizes)).eval()
        spread_weights(model, 1.0)
        model.generation_config.no_repeat_ngram_size = 1
    else:
        model = Case(next(family for family in FAMILIES if family.name == name), CONFIGS[name]).build()
    model.final_logits_bias[:, END] = END_BIAS[name]
    model.generation_config.max_length = 1 + LONGEST  # with the start token
    model.generation_config.bad_words_ids = [[PAD], [UNKNOWN]]  # a text would not show them
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {name: str(tmp_path_factory.mktemp(name)) for name in NAMES}
    for name, folder in found.items():
        built(name).save_pretrained(folder)
        TOKENIZER.save_pretrained(folder)
    return found


def make(name: str, tokenizer: Any = TOKENIZER, **options: Any) -> CapsuleTranslationPipeline:
    return pipeline("translation", model=built(name), tokenizer=tokenizer, device="cpu", **options)


def expected(name: str, texts: list[str] = TEXTS, **options: Any) -> list[str]:
    return translate(built(name), TOKENIZER, texts, **options)


def texts_of(found: Any) -> list[str]:
    return [one["translation_text"] for one in found]


def joined(texts: list[str]) -> str:
    """As the translations of a text's sentences are; some are empty."""
    return " ".join(text for text in texts if text)


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
    assert found[0]["coverage"].words == () and found[0]["coverage"].warnings() == []


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
        (MARIAN, {"return_coverage": True}, "return_coverage=True: MarianMTModel"),
        (CAPS_NMT.name, {"return_coverage": True}, "past_future=None"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **options)
    with pytest.raises(ValueError, match=message):
        make(name)("ba", **options)


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


def test_routings_of_a_split_text_are_refused() -> None:
    with pytest.raises(ValueError, match="return_routings=True: a text is too long and was split"):
        make(GDR_MARIAN.name)(LONG, return_routings=True)


@pytest.mark.parametrize("name", [GDR_MARIAN.name, GDR_RNMT.name])
def test_coverage_is_that_of_explain(name: str) -> None:
    found = make(name)(TEXTS[:3], batch_size=3, num_beams=2, num_return_sequences=2, return_coverage=True)
    for source, translations in zip(TEXTS, found, strict=False):
        for one in translations:
            coverage = explain(built(name), TOKENIZER, source, one["translation_text"]).coverage
            assert one["coverage"] == coverage and coverage.words == tuple(source.split())
            assert one["coverage"].warnings(0.0) == coverage.warnings(0.0) != []


def test_coverage_of_a_split_text_is_that_of_its_sentences() -> None:
    translator = make(GDR_MARIAN.name, return_coverage=True)
    whole, parts = translator(LONG)[0]["coverage"], translator(split_sentences(LONG))
    assert whole.words == tuple(LONG.split())
    for field in ("untranslated", "repeated"):
        assert getattr(whole, field) == sum((getattr(one["coverage"], field) for one in parts), ())


def test_coverage_needs_the_bag_of_words() -> None:
    model = Case(GDR_RNMT, "guided_of_other_sizes").build()
    with pytest.raises(ValueError, match="bow_loss_weight=0;"):
        pipeline("translation", model=model, tokenizer=TOKENIZER, device="cpu")("ba", return_coverage=True)


def test_coverage_without_the_package_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hf_capsule_mt.analysis.explain", None)
    with pytest.raises(ImportError, match="return_coverage=True needs the package hf_capsule_mt"):
        make(GDR_MARIAN.name)("ba", return_coverage=True)


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


def test_int8_models() -> None:
    quantized = quantize_for_cpu(built(CAPS_NMT.name))
    translator = pipeline("translation", model=quantized, tokenizer=TOKENIZER, device="cpu")
    wanted = translate(quantized, TOKENIZER, TEXTS)
    found = translator(TEXTS, batch_size=2, return_scores=True, return_routings=True)
    assert texts_of(found) == wanted and set(found[0]["routings"]) == {"encoder.capsules"}
    assert_scores(quantized, TEXTS, found, 1.0)


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


# Registration

TASKS = """
import json
import transformers.pipelines as there

def state():
    entries = {task: str(entry["impl"]) for task, entry in there.PIPELINE_REGISTRY.supported_tasks.items()}
    aliases = dict(there.PIPELINE_REGISTRY.task_aliases)
    return [there.get_supported_tasks(), entries, aliases, dict(getattr(there, "REMOVED_TASKS", {}))]

before = state()
import hf_capsule_mt
print(json.dumps([before, state()]))
"""


def test_nothing_but_translation_changes() -> None:
    command, root = [sys.executable, "-c", TASKS], Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=300)
    assert done.returncode == 0, done.stderr
    (tasks, entries, aliases, removed), after = json.loads(done.stdout.splitlines()[-1])
    assert "translation" not in tasks and (removed == {} or "translation" in removed)  # older ones have no such list
    ours = str(CapsuleTranslationPipeline)
    assert after[:3] == [sorted([*tasks, "translation"]), {**entries, "translation": ours}, aliases]
    assert after[3] == {task: why for task, why in removed.items() if task != "translation"}


@pytest.mark.parametrize("task", ["summarization", "text2text-generation", "question-answering"])
def test_what_is_removed_stays_removed(task: str) -> None:
    with pytest.raises(KeyError, match="has been removed|Unknown task"):
        pipeline(task, model=built(MARIAN), tokenizer=TOKENIZER)


@pytest.mark.parametrize("task", ["translations", "translation_en", "translation__to_", "nothing"])
def test_unknown_tasks_stay_unknown(task: str) -> None:
    with pytest.raises(KeyError, match="Unknown task"):
        pipeline(task, model=built(MARIAN), tokenizer=TOKENIZER)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Transformers' registry as it is without this package."""
    tasks = {task: entry for task, entry in there.PIPELINE_REGISTRY.supported_tasks.items() if task != "translation"}
    monkeypatch.setattr(there, "PIPELINE_REGISTRY", PipelineRegistry(tasks, dict(there.TASK_ALIASES)))
    monkeypatch.setattr(there, "REMOVED_TASKS", {"translation": "refused", "summarization": "refused"}, raising=False)
    return there.PIPELINE_REGISTRY


def test_registering_again_changes_nothing(fresh: Any) -> None:
    register_translation()
    entry, aliases = fresh.supported_tasks["translation"], fresh.task_aliases
    register_translation()
    assert fresh.supported_tasks["translation"] is entry and fresh.task_aliases is aliases
    assert entry["impl"] is CapsuleTranslationPipeline and there.REMOVED_TASKS == {"summarization": "refused"}
    assert there.check_task("translation_en_to_de")[1] is entry


@pytest.mark.parametrize("refused", [True, False])
def test_a_translation_pipeline_of_a_later_version_stays(fresh: Any, refused: bool) -> None:
    theirs = fresh.supported_tasks["translation"] = {"impl": Pipeline, "pt": ()}
    if not refused:
        del there.REMOVED_TASKS["translation"]
    tasks, removed, aliases = dict(fresh.supported_tasks), dict(there.REMOVED_TASKS), fresh.task_aliases
    register_translation()
    assert fresh.supported_tasks == tasks and fresh.supported_tasks["translation"] is theirs
    assert fresh.task_aliases is aliases and there.REMOVED_TASKS == removed


def test_a_later_version_that_refuses_nothing(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(there, "REMOVED_TASKS")
    register_translation()
    assert fresh.check_task("translation")[1]["impl"] is CapsuleTranslationPipeline


def test_somebodys_task_for_one_pair_stays(fresh: Any) -> None:
    fresh.register_pipeline("translation_en_to_de", type("Mine", (Pipeline,), {}))
    register_translation()
    assert there.check_task("translation_en_to_de")[1]["impl"].__name__ == "Mine"
    assert there.check_task("translation_de_to_en")[1]["impl"] is CapsuleTranslationPipeline


CUSTOM = {"translation": {"impl": "pipelines.Missing", "pt": ["AutoModelForSeq2SeqLM"]}}


@pytest.mark.parametrize("name", [MARIAN, CAPS_NMT.name])
def test_saving_a_pipeline_saves_no_code(name: str, folders: dict[str, str], tmp_path: Path) -> None:
    pipeline("translation", model=folders[name], device="cpu").save_pretrained(tmp_path)
    assert "custom_pipelines" not in json.loads((tmp_path / "config.json").read_text())
    assert list(tmp_path.glob("*.py")) == []
    assert texts_of(pipeline("translation", model=str(tmp_path), device="cpu")(TEXTS)) == expected(name)


@pytest.mark.parametrize("task", ["translation", "translation_en_to_de", None])
@pytest.mark.parametrize("trust", [None, True])
def test_what_is_installed_goes_before_the_code_of_a_checkpoint(
    task: str | None, trust: bool | None, folders: dict[str, str], tmp_path: Path
) -> None:
    """Its code is not asked for, and what the checkpoint says of it is not lost when it is saved again."""
    model = copy.deepcopy(built(CAPS_NMT.name))
    model.config.custom_pipelines = copy.deepcopy(CUSTOM)
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    translator = pipeline(task, model=str(tmp_path), trust_remote_code=trust, device="cpu")
    assert type(translator) is CapsuleTranslationPipeline
    assert texts_of(translator(TEXTS[:2])) == expected(CAPS_NMT.name)[:2]
    for _ in range(2):
        again = pipeline("translation", model=model, config=model.config, tokenizer=TOKENIZER, device="cpu")
        assert type(again) is CapsuleTranslationPipeline
    translator.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["custom_pipelines"] == CUSTOM


def test_another_familys_custom_pipelines_need_the_flag(tmp_path: Path) -> None:
    model = copy.deepcopy(built(MARIAN))
    model.config.custom_pipelines = copy.deepcopy(CUSTOM)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        pipeline("translation", model=str(tmp_path), device="cpu")
