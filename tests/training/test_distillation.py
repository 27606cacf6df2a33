"""Distillation: the corpus is what the teacher writes, line for line, however often the run was stopped."""

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    NllbTokenizer,
    set_seed,
)

from hf_capsule_mt import Distillation, corpus_scores, translate
from hf_capsule_mt.data import load_corpus, marian_token_ids, synthetic_lines, train_tokenizer
from hf_capsule_mt.evaluation.streaming import Translation
from hf_capsule_mt.training.distillation import teacher as teaching

LINES = 23
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]+")
PAIRS = synthetic_lines(LINES, seed=3, split="train", max_words=9)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock Marian that writes sentences of different lengths."""
    folder = tmp_path_factory.mktemp("teacher")
    tokenizer = train_tokenizer([text for side in PAIRS for text in side], vocab_size=330)
    set_seed(4)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64, "init_std": 1.0}
    sizes |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
    model = MarianMTModel(MarianConfig(**sizes, **marian_token_ids(tokenizer)))
    with torch.no_grad():
        model.final_logits_bias[:, model.config.eos_token_id] = 5.0
        model.get_decoder().layers[0].encoder_attn.out_proj.weight.mul_(4.0)
    never = [[model.config.pad_token_id]]
    model.generation_config.update(max_length=14, forced_eos_token_id=None, bad_words_ids=never)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus in it, and the cache of `datasets` beside."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "train", *PAIRS)
    return tmp_path


def write(prefix: Path, sources: list[str], targets: list[str]) -> None:
    for language, lines in (("en", sources), ("de", targets)):
        Path(f"{prefix}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def setting(place: Path, teacher: Path, **options: Any) -> Distillation:
    options = {"output": place / "new" / "train", "beam": 2, "max_tokens": 60, "shard_size": 4, **options}
    return Distillation(str(teacher), str(place / "train"), **options)


def written(prefix: Path) -> tuple[list[str], list[str]]:
    sides = (Path(f"{prefix}.{language}").read_text(encoding="utf-8") for language in ("en", "de"))
    sources, targets = (side.split("\n") for side in sides)
    assert sources.pop() == targets.pop() == ""
    return sources, targets


class Interrupted(Exception):
    pass


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """The teacher translates `after` shards, then the process dies; returns the list of what it was asked for."""
    asked: list[str] = []
    translate_lines = teaching.translate_lines

    def dying(model: Any, tokenizer: Any, lines: list[str], **options: Any) -> Iterator[list[Translation]]:
        if len(asked) >= after * 4:
            raise Interrupted
        asked.extend(lines)
        return translate_lines(model, tokenizer, lines, **options)

    monkeypatch.setattr(teaching, "translate_lines", dying)
    return asked


def test_the_corpus_is_what_the_teacher_writes(place: Path, teacher: Path) -> None:
    report = setting(place, teacher).run()
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(teacher), AutoTokenizer.from_pretrained(teacher)
    texts = [CONTROL.sub(" ", text).strip() for text in translate(model, tokenizer, PAIRS[0], num_beams=2)]
    assert len(set(texts)) > 15 and len({len(text) for text in texts}) > 5 and texts.count("") == 1
    expected = [text or reference for text, reference in zip(texts, PAIRS[1], strict=True)]
    assert written(place / "new" / "train") == (PAIRS[0], expected)
    rows = load_corpus(str(place / "new" / "train")).pairs["translation"]
    assert [(row["en"], row["de"]) for row in rows] == list(zip(PAIRS[0], expected, strict=True))
    assert report["lines"] == LINES and report["kept_references"] == {"too_long": 0, "blank": 1}
    assert report["bleu_against_references"] == pytest.approx(corpus_scores(texts, PAIRS[1]).bleu)
    assert report["target_tokens"] == sum(len(ids) for ids in tokenizer(text_target=texts)["input_ids"])
    kept = json.loads((place / "new" / "train.distill.json").read_text())
    assert kept["report"] == report and kept["settings"]["beam"] == 2 and kept["teacher"] == str(teacher)
    assert sorted(path.name for path in (place / "new").iterdir()) == ["train.de", "train.distill.json", "train.en"]


def test_bleu_of_shards_is_that_of_the_corpus(place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a teacher that is mostly right; the one that was drawn at random scores 0 by any sum."""
    answers = dict(zip(*PAIRS, strict=True))
    answers[PAIRS[0][1]] = answers[PAIRS[0][9]] = "Das ist falsch und länger als die Referenz."

    def knowing(model: Any, tokenizer: Any, lines: list[str], **_: Any) -> list[list[Translation]]:
        return [[Translation(answers[line])] for line in lines]

    monkeypatch.setattr(teaching, "translate_lines", knowing)
    scores = corpus_scores([answers[line] for line in PAIRS[0]], PAIRS[1])
    report = setting(place, teacher).run()
    assert 50 < report["bleu_against_references"] < 99
    assert report["bleu_against_references"] == pytest.approx(scores.bleu)
    assert report["bleu_signature"] == scores.bleu_signature


@pytest.mark.parametrize("seed", range(2))
def test_no_line_is_lost_or_doubled_by_stops(
    place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """However often it stops, the corpus is that of one go, and each line is translated once."""
    setting(place, teacher, output=place / "whole").run()
    stops, asked = random.Random(seed), list[str]()
    with monkeypatch.context() as patch:
        for _ in range(20):
            part = interrupt(patch, after=stops.randrange(2))
            try:
                setting(place, teacher).run()
                break
            except Interrupted:
                assert not (place / "new" / "train.de").exists()
                (place / "new" / "train.shards" / "000003.json.123.part").write_text('{"translations": ["half')
            finally:
                asked += part
                patch.undo()
    assert not (place / "new" / "train.shards").exists()
    assert asked == PAIRS[0]
    for language in ("en", "de"):
        assert (place / "new" / f"train.{language}").read_bytes() == (place / f"whole.{language}").read_bytes()


def test_what_is_done_is_not_done_again(place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = setting(place, teacher).run()
    asked = interrupt(monkeypatch, after=100)
    assert setting(place, teacher, max_tokens=500, shard_size=None).run() == report and asked == []
    (place / "new" / "train.de").unlink()
    assert setting(place, teacher).run()["lines"] == LINES and asked == PAIRS[0]
    assert setting(place, teacher, beam=1).run(overwrite=True)["lines"] == LINES and len(asked) == 2 * LINES


def test_a_run_is_taken_up_with_its_own_settings_only(
    place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    model = AutoModelForSeq2SeqLM.from_pretrained(teacher)
    AutoTokenizer.from_pretrained(teacher).save_pretrained(other)
    model.save_pretrained(other)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, after=2)
        setting(place, teacher).run()
    for options, message in (
        ({"beam": 3}, "beam was 2 and is 3"),
        ({"length_penalty": 0.8}, "length_penalty was None and is 0.8"),
        ({"shard_size": 5}, "shard_size was 4 and is 5"),
        ({"prefix": "x "}, "prefix was '' and is 'x '"),
    ):
        with pytest.raises(ValueError, match=f"train.distill.json was begun with other settings: {message}"):
            setting(place, teacher, **options).run()
    done = set((place / "new" / "train.shards").iterdir())
    assert len(done) == 2
    with torch.no_grad():
        model.lm_head.weight[7, 3] += 0.25
    model.save_pretrained(other)
    with pytest.raises(ValueError, match="teacher_digest was"):
        setting(place, other).run()
    with torch.no_grad():
        model.lm_head.weight[7, 3] -= 0.25
    model.save_pretrained(other)
    write(place / "train", [*PAIRS[0][:-1], "Other."], PAIRS[1])
    with pytest.raises(ValueError, match="corpus_digest was"):
        setting(place, teacher).run()
    write(place / "train", *PAIRS)
    assert set((place / "new" / "train.shards").iterdir()) == done
    assert setting(place, other).run()["lines"] == LINES  # the same teacher in another folder


def test_lines_that_the_teacher_cannot_translate_keep_their_reference(
    place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = (list(side) for side in PAIRS)
    sources[5], targets[5] = " ".join(sources), "zu lang"
    sources[6], targets[6] = "tab\tand\x07bell", "Tab\tund\x07Glocke"
    write(place / "train", sources, targets)
    translate_lines, asked = teaching.translate_lines, []

    def strange(model: Any, tokenizer: Any, lines: list[str], **options: Any) -> Iterator[list[Translation]]:
        asked.extend(lines)
        for line, actual in zip(lines, translate_lines(model, tokenizer, lines, **options), strict=True):
            if line == sources[2]:  # this teacher has one blank line of its own
                actual = [Translation(" \n\u2028 ")]
            yield [Translation("\nzwei\r\nZeilen\u0085hier")] if line == sources[3] else actual

    monkeypatch.setattr(teaching, "translate_lines", strange)
    report = setting(place, teacher).run()
    assert asked[5] == "" and asked[6] == "tab and bell" and asked[7:] == sources[7:]
    new_sources, new_targets = written(place / "new" / "train")
    assert new_sources == [*sources[:6], "tab and bell", *sources[7:]]
    assert new_targets[2] == targets[2] and new_targets[3] == "zwei Zeilen hier" and new_targets[5] == "zu lang"
    assert len(new_targets) == LINES and all(new_targets)
    assert report["kept_references"] == {"too_long": 1, "blank": 2}
    assert len(load_corpus(str(place / "new" / "train")).pairs) == LINES


def test_what_the_teacher_is_told(place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def telling(model: Any, tokenizer: Any, lines: list[str], **options: Any) -> list[list[Translation]]:
        told.update(options, lines=lines)
        return [[Translation("x")] for _ in lines]

    monkeypatch.setattr(teaching, "translate_lines", telling)
    setting(place, teacher, prefix=">>deu<< ", length_penalty=0.8, max_new_tokens=9).run()
    assert told["lines"] == [f">>deu<< {line}" for line in PAIRS[0][20:]] and told["window"] == 3
    assert (told["num_beams"], told["length_penalty"], told["max_new_tokens"]) == (2, 0.8, 9)
    assert told["do_sample"] is False and told["max_tokens"] == 60


def test_a_teacher_of_many_languages(place: Path, tmp_path: Path) -> None:
    letters = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *sorted(set("".join(PAIRS[0])) - {" "})]
    tokenizer = NllbTokenizer(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    set_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "init_std": 1.0, "vocab_size": len(tokenizer)}
    sizes |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
    model = M2M100ForConditionalGeneration(M2M100Config(**sizes)).eval()
    model.generation_config.max_length = 14
    model.save_pretrained(tmp_path / "many")
    tokenizer.save_pretrained(tmp_path / "many")
    setting(place, tmp_path / "many", teacher_languages=("eng_Latn", "deu_Latn")).run()
    tokenizer.src_lang = "eng_Latn"
    german = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("deu_Latn")}
    texts = [text.strip() for text in translate(model, tokenizer, PAIRS[0], num_beams=2, **german)]
    assert len(set(texts)) > 10 and texts != translate(model, tokenizer, PAIRS[0], num_beams=2)
    expected = [text or reference for text, reference in zip(texts, PAIRS[1], strict=True)]
    assert written(place / "new" / "train")[1] == expected
    with pytest.raises(ValueError, match="teacher_languages: 'de' is not a token of the teacher's"):
        setting(place, tmp_path / "many", teacher_languages=("eng_Latn", "de")).run()


def test_errors(place: Path, teacher: Path) -> None:
    for options, message in (
        ({"beam": 0}, "beam=0: must be an integer of at least 1"),
        ({"shard_size": 0}, "shard_size=0: must be"),
        ({"target": "en"}, "must be two different|are the same"),
        ({"output": place / "train"}, "is the corpus itself"),
    ):
        with pytest.raises(ValueError, match=message):
            setting(place, teacher, **options).run()
    before = (place / "train.de").read_bytes()
    for corpus in (f"{place}/train.en, {place}/train.de", f"{place}/train.{{lang}}"):
        with pytest.raises(ValueError, match="is the corpus itself"):
            Distillation(str(teacher), corpus, place / "train").run(overwrite=True)
    assert (place / "train.de").read_bytes() == before
    (place / "new").mkdir()
    (place / "new" / "train.de").write_text("mine\n")
    with pytest.raises(ValueError, match="train.de exists and .*train.distill.json does not"):
        setting(place, teacher).run()
    assert (place / "new" / "train.de").read_text() == "mine\n"
    assert not (place / "new" / "train.shards").exists()


def test_a_second_run_of_the_same_output_is_refused(
    place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nested(*_: Any, **__: Any) -> Any:
        with pytest.raises(ValueError, match=f"another run is writing to .*train.shards: process {os.getpid()} on "):
            setting(place, teacher).run()
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(teaching, "translate_lines", nested)
        setting(place, teacher).run()
    assert setting(place, teacher).run()["lines"] == LINES


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_corpus_that_another_program_writes_meanwhile_is_not_replaced(
    place: Path, teacher: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `overwrite` it is another one than when the run began. No translation is lost either."""
    target, translate_lines = place / "new" / "train.de", teaching.translate_lines
    if overwrite:
        setting(place, teacher).run()

    def another_program_first(*arguments: Any, **options: Any) -> Any:
        target.write_text("theirs\n")
        return translate_lines(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(teaching, "translate_lines", another_program_first)
        with pytest.raises(
            ValueError, match=f"{target} was created or changed by another program after this run began"
        ):
            setting(place, teacher).run(overwrite)
    assert target.read_text() == "theirs\n"
    asked = interrupt(monkeypatch, after=0)
    with pytest.raises(ValueError, match="move it away, and give the same command again"):
        setting(place, teacher).run()
    target.unlink()
    assert setting(place, teacher).run()["lines"] == LINES and not asked
    assert len(target.read_text(encoding="utf-8").splitlines()) == LINES


def test_a_run_that_was_killed_between_its_two_files_goes_on(
    place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that is there is its own, and not that of another program."""
    setting(place, teacher, output=place / "whole" / "train").run()
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, after=3)
        setting(place, teacher).run()
    (place / "new" / "train.de").write_bytes((place / "whole" / "train.de").read_bytes())
    assert setting(place, teacher).run()["lines"] == LINES
    assert written(place / "new" / "train") == written(place / "whole" / "train")


def test_a_file_of_the_user_between_the_shards_stays(place: Path, teacher: Path) -> None:
    notes = place / "new" / "train.shards" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    for overwrite in (False, True):
        setting(place, teacher).run(overwrite)
        assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"] and notes.read_text() == "mine"


def test_a_damaged_shard_is_named(place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, after=3)
        setting(place, teacher).run()
    shard = place / "new" / "train.shards" / "000001.json"
    content = json.loads(shard.read_text())
    content["translations"].pop()
    whole = json.dumps(content)
    shard.write_text(whole)
    with pytest.raises(ValueError, match="000001.json holds 3 translations of 4 lines: delete it and run again"):
        setting(place, teacher).run()
    shard.write_text(whole[:30])
    with pytest.raises(ValueError, match=r"000001.json is damaged \(.*\): delete it and run again"):
        setting(place, teacher).run()
    shard.unlink()
    assert setting(place, teacher).run()["lines"] == LINES


def test_a_manifest_that_is_damaged_or_gone_is_named(
    place: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, after=3)
        setting(place, teacher).run()
    manifest = place / "new" / "train.distill.json"
    for text in (manifest.read_text()[:40], "", "\x00", "3"):
        manifest.write_text(text)
        with pytest.raises(ValueError, match=r"train.distill.json is damaged \(.*\): put it back from a copy, or"):
            setting(place, teacher).run()
    manifest.unlink()
    with pytest.raises(ValueError, match=r"train.shards holds translations and .*train.distill.json does not exist"):
        setting(place, teacher).run()
    assert len(list((place / "new" / "train.shards").iterdir())) == 3, "nothing is thrown away"
    assert setting(place, teacher).run(overwrite=True)["lines"] == LINES


@pytest.mark.parametrize(("lines", "size"), [(1, 1), (16, 1), (17, 2), (23, 2)])
def test_small_corpora_are_cut_small(place: Path, teacher: Path, lines: int, size: int) -> None:
    write(place / "train", *(side[:lines] for side in PAIRS))
    assert setting(place, teacher, beam=1, shard_size=None).run()["lines"] == lines
    assert json.loads((place / "new" / "train.distill.json").read_text())["settings"]["shard_size"] == size
