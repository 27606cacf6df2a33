"""Sequence-level knowledge distillation: a training corpus as a teacher translates it.

The student learns from what beam search finds with the teacher, in the place of the references (Kim and Rush 2016,
"Sequence-Level Knowledge Distillation"). Section 4.2, CapsNMT: base Transformers are the teachers, "we decode the
entire training set once", with "a beam width of 8 and length penalty 0.8 in all the experiments" (its formula is not
given; `generate` divides by the length to that power). It gains 1.2 BLEU for the base model (Tables 1 and 2: 25.7 to
26.9 English-German). Those settings are `beam=8, length_penalty=0.8` here.

What a run leaves while it goes on, `output` being a prefix of files:

| file | holds |
| --- | --- |
| `output.distill.json` | the settings it was begun with, and the report when it is done |
| `output.shards/N.json` | translations of lines N * shard_size and on; written under another name and renamed |
| `output.en`, `output.de` | the corpus, when it is done; the shards are gone then |

A shard is there whole or not at all, so a run may be stopped in any way and started again with any number of
processes: it decodes the shards that are not there. With the same `max_tokens` on the same kind of machine the corpus
is to the byte that of a run that was never stopped, since batches never reach over the bounds of a shard; within it
they hold sentences of like length.
"""

import hashlib
import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from hf_capsule_mt.evaluation.decoding import source_limit
from hf_capsule_mt.evaluation.streaming import one_line, translate_lines
from hf_capsule_mt.training.checkpoints.folder_lock import HOLDER, only_run
from hf_capsule_mt.training.processes import from_main, replacing, this_process

# Lines. Batches of 4096 tokens are then at most 7 % more than if the whole corpus were sorted by length (captions,
# short and long sentences); with shards of 2048 lines they are 7 to 27 % more.
LARGEST_SHARD = 8192
SHARDS_PER_PROCESS = 16  # at least, so that processes end at about the same time and the bar moves
CHANGING = ("_name_or_path", "transformers_version", "dtype")  # say nothing about what a model writes


@dataclass(frozen=True)
class Distillation:
    """The settings of one corpus to be written; [`run`] writes it.

    A line that the teacher cannot translate keeps its reference: one that is longer than the teacher's positions or
    blank, and one whose translation is blank. The report counts them. Control characters become spaces on both sides.

    Args:
        teacher: folder or Hub id of any model for `AutoModelForSeq2SeqLM`, with safetensors weights.
        corpus: as `load_corpus` takes it.
        output: prefix of the files that are written; `load_corpus` takes it too.
        source, target: languages of the corpus, and the endings of the files.
        beam, length_penalty, max_new_tokens: None leaves it to the teacher's generation config.
        prefix: goes before every source, for teachers that are told what to do (`translate English to German: `,
            `>>deu<< `).
        teacher_languages: what a multilingual teacher calls the two languages, `("eng_Latn", "deu_Latn")` for NLLB.
        dtype: of the teacher's weights.
        max_tokens: source tokens of a batch, padding included. It may differ when a run is taken up again.
        shard_size: lines; None for at most 8192 and at least 16 shards a process, or what the run was begun with.
        device: None for the one that Accelerate gives each process.
        repair: the corpus while it is read, see `load_corpus`.
    """

    teacher: str
    corpus: str
    output: str | Path
    source: str = "en"
    target: str = "de"
    beam: int = 4
    length_penalty: float | None = None
    max_new_tokens: int | None = None
    prefix: str = ""
    teacher_languages: tuple[str, str] | None = None
    dtype: str = "float32"
    max_tokens: int = 4096
    shard_size: int | None = None
    device: str | None = None
    repair: bool = False

    def __post_init__(self) -> None:
        for name in ("beam", "max_tokens", "shard_size", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: must be an integer of at least 1")
        if self.source == self.target:
            raise ValueError(f"source={self.source!r} and target={self.target!r} are the same: name two languages")

    def run(self, overwrite: bool = False, show_progress: bool = False) -> dict[str, Any]:
        """Decode what is missing, with all processes of this run, and write the corpus; returns the report.

        Args:
            overwrite: start from nothing, whatever is there.
            show_progress: a bar of lines, those of all processes.
        """
        state = this_process(self.device)
        with ExitStack() as stack:
            begun = from_main(state, lambda: self._begin(stack, state.num_processes, overwrite))
            if "report" in begun:
                return begun["report"]
            mine = begun["missing"][state.process_index :: state.num_processes]
            size = begun["settings"]["shard_size"]
            self._decode(mine, size, self.device or state.device, show_progress and state.is_main_process)
            state.wait_for_everyone()
            return from_main(state, lambda: self._finish(begun))

    def file(self, ending: str) -> Path:
        """`output` with `.ending`; a prefix may have dots of its own."""
        return Path(f"{self.output}.{ending}")

    @property
    def _manifest(self) -> Path:
        return self.file("distill.json")

    @property
    def _shards(self) -> Path:
        return self.file("shards")

    def _shard(self, number: int) -> Path:
        return self._shards / f"{number:06d}.json"

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        with replacing(path, self._shards) as file:
            json.dump(content, file, indent=1)

    @cached_property
    def _pairs(self) -> Any:
        from hf_capsule_mt.data import load_corpus

        return load_corpus(self.corpus, self.source, self.target, repair=self.repair).pairs

    @cached_property
    def _teacher(self) -> tuple[Any, Any, dict[str, Any]]:
        """The tokenizer, the model, and what both are told of the languages."""
        from transformers import AutoTokenizer

        import hf_capsule_mt  # noqa: F401  (its families become known)
        from hf_capsule_mt.modeling.saving.any_model import load_translation_model

        tokenizer = AutoTokenizer.from_pretrained(self.teacher)
        dtype = getattr(torch, self.dtype)
        model = load_translation_model(self.teacher, dtype=dtype, use_safetensors=True).eval()
        if self.teacher_languages is None:
            return tokenizer, model, {}
        token_of = getattr(tokenizer, "get_lang_id", tokenizer.convert_tokens_to_ids)  # M2M100 has names of its own
        for language in self.teacher_languages:
            if language not in tokenizer.get_vocab() and not hasattr(tokenizer, "get_lang_id"):
                raise ValueError(
                    f"teacher_languages: {language!r} is no token of the teacher's tokenizer; see its card"
                )
        tokenizer.src_lang, tokenizer.tgt_lang = self.teacher_languages
        return tokenizer, model, {"forced_bos_token_id": token_of(self.teacher_languages[1])}

    def _settings(self) -> dict[str, Any]:
        """Whatever decides what is written; all of it must be the same when a run is taken up again."""
        names = ("source", "target", "beam", "length_penalty", "max_new_tokens", "prefix", "dtype", "shard_size")
        settings = {name: getattr(self, name) for name in names}
        settings["teacher_languages"] = self.teacher_languages and list(self.teacher_languages)  # as JSON keeps it
        settings["teacher_digest"] = _model_digest(*self._teacher[:2])
        return settings | {"corpus_digest": self._corpus_digest(), "lines": len(self._pairs)}

    def _corpus_digest(self) -> str:
        digest = hashlib.sha256()
        for rows in self._pairs.iter(batch_size=10_000):
            for row in rows["translation"]:
                digest.update(f"{row[self.source]}\0{row[self.target]}\0".encode())
        return digest.hexdigest()

    def _begin(self, stack: ExitStack, processes: int, overwrite: bool) -> dict[str, Any]:
        """On the main process: what this run is, as the manifest keeps it, and the shards that are missing."""
        outputs = [self.file(language) for language in (self.source, self.target)]
        names = [self.corpus, *self.corpus.split(",")]
        for language in (self.source, self.target):
            pattern = self.corpus.replace("{lang}", language).replace("{split}", "train")
            names += [pattern, f"{pattern}.{language}"]
        written = {path.resolve() for path in (Path(self.output), *outputs)}
        if written & {Path(name.strip()).resolve() for name in names}:
            raise ValueError(f"output {str(self.output)!r} is the corpus itself: name another")
        known = {}
        if self._manifest.exists() and not overwrite:
            known = _read(self._manifest, "put it back from a copy, or start from nothing with overwrite")
        existing = [path for path in outputs if path.exists()]
        if existing and not known and not overwrite:
            raise ValueError(f"{existing[0]} exists and {self._manifest} does not: move it away or overwrite it")
        if any(self._shards.glob("*.json")) and not known and not overwrite:
            raise ValueError(
                f"{self._shards} holds translations and {self._manifest} does not exist: put it back from a copy, or "
                "start from nothing with overwrite"
            )
        settings = self._settings()
        self._shards.mkdir(parents=True, exist_ok=True)
        stack.enter_context(only_run(self._shards))
        if known:
            self._compare(known["settings"], settings)
            settings = known["settings"]
        else:
            for path in self._shards.iterdir():
                if path.name != HOLDER:
                    path.unlink()
            even = -(-len(self._pairs) // (SHARDS_PER_PROCESS * processes))
            settings["shard_size"] = self.shard_size or min(even, LARGEST_SHARD)
        if "report" in known and len(existing) == 2:
            shutil.rmtree(self._shards)
            return known
        begun = {"teacher": self.teacher, "corpus": self.corpus, "settings": settings}
        self._write(self._manifest, begun)
        count = -(-len(self._pairs) // settings["shard_size"])
        return begun | {"missing": [number for number in range(count) if not self._shard(number).exists()]}

    def _compare(self, known: dict[str, Any], settings: dict[str, Any]) -> None:
        different = [
            f"{name} was {known.get(name)!r} and is {value!r}"
            for name, value in settings.items()
            if value != known.get(name) and not (name == "shard_size" and value is None)
        ]
        if different:
            raise ValueError(
                f"{self._manifest} was begun with other settings: {'; '.join(different)}. Go on with those, give "
                "another output, or overwrite"
            )

    def _decode(self, shards: list[int], size: int, device: Any, show_progress: bool) -> None:
        self._teacher[1].to(device)
        lines = len(self._pairs)

        def done() -> int:
            return min(size * len(list(self._shards.glob("*.json"))), lines)  # by all processes

        with tqdm(total=lines, initial=done(), desc="distilling", unit="line", disable=not show_progress) as bar:
            for number in shards:
                rows = self._pairs[number * size : (number + 1) * size]["translation"]
                self._write(self._shard(number), self._translate(rows))
                bar.update(done() - bar.n)

    def _translate(self, rows: list[dict[str, str]]) -> dict[str, Any]:
        """What a shard holds: the lines of the target side, and what the report sums up."""
        from sacrebleu.metrics import BLEU

        tokenizer, model, options = self._teacher
        sources, references = ([one_line(row[language]) for row in rows] for language in (self.source, self.target))
        asked = [self.prefix + line if line.strip() else "" for line in sources]
        limit = source_limit(model, tokenizer)
        too_long = [limit is not None and len(ids) > limit for ids in tokenizer(asked)["input_ids"]]
        if self.max_new_tokens is not None:
            options = options | {"max_new_tokens": self.max_new_tokens}
        started = time.perf_counter()
        found = translate_lines(
            model,
            tokenizer,
            ["" if long else line for line, long in zip(asked, too_long, strict=True)],
            max_tokens=self.max_tokens,
            window=len(rows),
            length_penalty=self.length_penalty,
            num_beams=self.beam,
            do_sample=False,
            **options,
        )
        texts = [one_line(translations[0].text).strip() for translations in found]
        seconds = time.perf_counter() - started
        bleu = BLEU()
        score = bleu.corpus_score(texts, [references])
        return {
            "translations": [text or reference for text, reference in zip(texts, references, strict=True)],
            "too_long": sum(too_long),
            "blank": texts.count("") - sum(too_long),
            "target_tokens": sum(len(ids) for ids in tokenizer(text_target=texts)["input_ids"]),
            "seconds": seconds,
            "bleu": [score.counts, score.totals, score.sys_len, score.ref_len],
            "bleu_signature": str(bleu.get_signature()),
        }

    def _finish(self, begun: dict[str, Any]) -> dict[str, Any]:
        """On the main process: the corpus from its shards, and the report."""
        from sacrebleu.metrics import BLEU

        size, sums, bleu = begun["settings"]["shard_size"], dict[str, float](), list[Any]()
        outputs = [self.file(language) for language in (self.source, self.target)]
        with ExitStack() as stack:
            sources, targets = (stack.enter_context(replacing(path, self._shards)) for path in outputs)
            for number, start in enumerate(range(0, len(self._pairs), size)):
                shard = _read(self._shard(number), "delete it and run again")
                rows = self._pairs[start : start + size]["translation"]
                if len(shard["translations"]) != len(rows):
                    raise ValueError(
                        f"{self._shard(number)} holds {len(shard['translations'])} translations of {len(rows)} lines: "
                        "delete it and run again"
                    )
                sources.writelines(one_line(row[self.source]) + "\n" for row in rows)
                targets.writelines(line + "\n" for line in shard["translations"])
                for name in ("too_long", "blank", "target_tokens", "seconds"):
                    sums[name] = sums.get(name, 0) + shard[name]
                bleu.append(shard["bleu"])
        counts, totals = ([sum(column) for column in zip(*(part[i] for part in bleu), strict=True)] for i in (0, 1))
        system, reference = (sum(part[i] for part in bleu) for i in (2, 3))
        report = {
            "lines": len(self._pairs),
            "kept_references": {"too_long": sums["too_long"], "blank": sums["blank"]},
            "target_tokens": sums["target_tokens"],
            "process_seconds": sums["seconds"],
            "tokens_per_second_and_process": sums["target_tokens"] / sums["seconds"],
            "bleu_against_references": BLEU.compute_bleu(counts, totals, system, reference, "exp").score,
            "bleu_signature": shard["bleu_signature"],
        }
        kept = {name: value for name, value in begun.items() if name != "missing"}
        self._write(self._manifest, kept | {"report": report})
        shutil.rmtree(self._shards)
        return report


def _read(path: Path, fix: str) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): {fix}") from error


def _model_digest(tokenizer: Any, model: Any) -> str:
    """Of the weights, the vocabulary and the settings: the same wherever the model lies."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    configs = [config.to_diff_dict() for config in (model.config, model.generation_config)]
    described = [{name: config[name] for name in config if name not in CHANGING} for config in configs]
    digest.update(json.dumps([described, tokenizer.get_vocab()], sort_keys=True, default=str).encode())
    return digest.hexdigest()
