"""Running a recipe: corpora, tokenizer, model, training, translation of the test set, and `results.json`.

Under `accelerate launch` every process runs all of it. What is written is written by the main process alone, which
prepares the data before the others, so that they find it.
"""

import json
import math
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, set_seed

from hf_capsule_mt.evaluation.scores import corpus_scores
from hf_capsule_mt.recipes.bow_accuracy import note_bow_accuracy
from hf_capsule_mt.recipes.corpora import Data, check_folders, load_data, say
from hf_capsule_mt.recipes.fields import RecipeTrainingArguments
from hf_capsule_mt.recipes.lengths import fit_lengths
from hf_capsule_mt.recipes.model import BuiltModel, build_model, checkpoint_config, default_config
from hf_capsule_mt.recipes.output_folder import RECIPE, RESULTS, check_init_from
from hf_capsule_mt.recipes.recipe import Recipe
from hf_capsule_mt.recipes.run_record import RunRecord, Start, begin_run, free_folder, now
from hf_capsule_mt.recipes.run_settings import OF_ONE_START, SECRET
from hf_capsule_mt.recipes.strict_yaml import dump_yaml
from hf_capsule_mt.training.checkpoints.folder_lock import FolderLock
from hf_capsule_mt.training.parameter_groups import NewParameterLearningRate
from hf_capsule_mt.training.processes import from_main, main_first
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer


class Interrupted(Exception):
    """A signal has ended the run early, with a checkpoint; says after which step, and what a shell calls that end."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        super().__init__(step)
        self.exit_code = 128 + number


class RecipeTrainer(NewParameterLearningRate, CapsuleSeq2SeqTrainer):
    """The trainer of a recipe."""


def run_recipe(recipe: Recipe) -> dict[str, Any]:
    """Train, evaluate and save by a recipe; returns what stands in `results.json`. A run that is finished is left as
    it is. Another process that writes to the same folder is an error."""
    with ExitStack() as stack:
        return _run(recipe, stack)


def _run(recipe: Recipe, stack: ExitStack) -> dict[str, Any]:
    started = time.perf_counter()
    arguments = recipe.training
    folder = Path(str(arguments.output_dir))
    family, init_from = str(recipe.model.family), recipe.model.init_from
    # Before the corpora are read.
    base = default_config(family) | recipe.config if init_from is None else checkpoint_config(family, init_from)
    owner = "the model" if init_from is None else f"the checkpoint {init_from}"
    for line in fit_lengths(recipe, base.get("max_position_embeddings"), owner):
        say(arguments, line)
    check_folders(recipe, folder)
    check_init_from(init_from, folder)
    arguments.device  # noqa: B018  (the processes find each other)
    start: Start = from_main(PartialState(), lambda: begin_alone(recipe, stack))
    if start.nothing_to_do:
        return finished_results(recipe, start)
    say_seeds(recipe)
    say_start(recipe, start)
    with main_first():
        if arguments.process_index == 0:
            write_recipe(recipe, start)
        data = load_data(recipe, folder, trained=start.checkpoint is not None or arguments.process_index != 0)
    set_seed(arguments.seed)
    built = build_model(family, recipe.config, data.tokenizer, init_from)
    trainer = make_trainer(recipe, data, built)
    # Named only where the user did: what the run has found by itself is for it to clear away.
    resumed = arguments.resume_from_checkpoint or start.checkpoint is not None
    metrics = trainer.train(resume_from_checkpoint=resumed).metrics
    if trainer.interrupted:
        step = trainer.state.global_step
        say(arguments, f"interrupted after step {step}, which is saved; the same command goes on from there")
        raise Interrupted(step, trainer.interrupted_by or signal.SIGTERM)
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):  # there no process has a model to run
        split = "validation" if "validation" in data.corpora else "train"
        pairs = (row["translation"] for row in data.corpora[split].pairs)
        note_bow_accuracy(built.model, data.tokenizer, pairs, recipe.data.source, recipe.data.target)
    # Before the model is saved: a loss that is not finite ends the run here.
    splits = [split for split in ("validation", "test") if split in data.pairs]
    scores: dict[str, Any] = {split: score(trainer, recipe, data, split) for split in splits}
    trainer.save_model()
    trainer.save_state()
    start.record.finish(trainer.state.global_step)
    results: dict[str, Any] = {
        **describe(recipe, data, built, trainer, start.record),
        "resumed_from": start.checkpoint,
        "steps": trainer.state.global_step,
        "weights": trainer.final_weights(),
        "train_seconds": trainer.trained_seconds,
        "target_tokens_per_second": metrics.get("train_target_tokens_per_second"),
        **learning_curves(trainer),
        **scores,
        "wall_seconds": time.perf_counter() - started,
        "date": now(),
    }
    if arguments.process_index == 0:
        write_results(results, folder)
        start.record.write(folder)
    return results


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Write `results.json`; a number that is not finite, which JSON does not have, is an error."""
    try:
        text = json.dumps(results, indent=1, default=str, allow_nan=False)
    except ValueError as error:
        raise ValueError(
            f"{folder / RESULTS} was not written: {infinite_entry(results)} is not finite, and JSON has no such "
            "number; training has diverged, or a setting is infinite"
        ) from error
    part = folder / f"{RESULTS}.part"
    part.write_text(f"{text}\n", encoding="utf-8")
    part.replace(folder / RESULTS)


def infinite_entry(value: Any, name: str = "") -> str | None:
    """The dotted name of the first number in nested results that is infinite or not a number."""
    if isinstance(value, float):
        return None if math.isfinite(value) else name
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    found = (infinite_entry(entry, f"{name}.{key}" if name else str(key)) for key, entry in entries)
    return next((one for one in found if one is not None), None)


def begin_alone(recipe: Recipe, stack: ExitStack) -> Start:
    """How the run begins, with its folder locked until the stack ends. A run that has nothing to do writes nothing."""
    folder = Path(str(recipe.training.output_dir))
    lock = FolderLock(folder)
    locked = folder.is_dir() and sys.platform != "win32"
    if locked:
        stack.enter_context(lock)
    start = begin_run(recipe)
    if not start.nothing_to_do and sys.platform != "win32":
        folder.mkdir(parents=True, exist_ok=True)
        if not locked:
            stack.enter_context(lock)
        lock.sign()
    return start


def finished_results(recipe: Recipe, start: Start) -> dict[str, Any]:
    """The results of a run that has nothing left to do."""
    folder = Path(str(recipe.training.output_dir))
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    scores = [f"{split} BLEU {results[split]['bleu']:.2f}" for split in ("validation", "test") if split in results]
    say(recipe.training, ", ".join([f"{folder}: the run is finished, {results['steps']} steps", *scores]))
    if start.without_effect:
        say(recipe.training, f"Changed, and without effect now: {', '.join(start.without_effect)}.")
    say(
        recipe.training,
        f"Nothing was written. For a longer run raise max_steps; for another one choose another output_dir, such as "
        f"{free_folder(folder)}.",
    )
    return results


def say_seeds(recipe: Recipe) -> None:
    arguments = recipe.training
    say(
        arguments,
        f"seeds: {arguments.seed} (Python, NumPy, PyTorch), {data_seed(arguments)} (order of the pairs), "
        f"{recipe.data.corpus_seed} (synthetic corpora)",
    )
    if arguments.device.type == "cpu" and not (arguments.bf16 or arguments.fp16) and cpu_computes_in_bfloat16():
        say(arguments, "this processor computes in bfloat16: a model of base size trains faster with --bf16 --use_cpu")


def say_start(recipe: Recipe, start: Start) -> None:
    """From which checkpoint the run goes on, and what is not as it was."""
    if start.checkpoint is None:
        return
    segment = start.record.summary()[-1]
    say(recipe.training, f"going on from {start.checkpoint}, after step {segment['from_step']}")
    for name, (before, after) in segment["changed"].items():
        say(recipe.training, f"  {name} was {before!r}, now {after!r}")
    if len(start.record.segments) > 1 and segment["learning_rate"] != start.record.segments[-2]["learning_rate"]:
        say(recipe.training, f"  learning rate from here on: {segment['learning_rate']}")


def cpu_computes_in_bfloat16() -> bool:
    """Whether the processor has instructions for it (AVX512-BF16, AMX); others are slower in it than in float32."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, test)() for test in tests if hasattr(torch.cpu, test))


def data_seed(arguments: RecipeTrainingArguments) -> int:
    return arguments.seed if arguments.data_seed is None else arguments.data_seed


def write_recipe(recipe: Recipe, start: Start) -> None:
    """Write down the recipe, and the record of the run with the segment that begins."""
    folder = Path(str(recipe.training.output_dir))
    folder.mkdir(parents=True, exist_ok=True)
    text = dump_yaml(given_settings(recipe))
    if any(segment["changed"] for segment in start.record.summary()):
        text = f"# Not every step was trained with this: the segments in {RESULTS} say which were.\n{text}"
    part = folder / f"{RECIPE}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / RECIPE)
    start.record.write(folder)


def given_settings(recipe: Recipe) -> dict[str, Any]:
    """What makes the run again: neither secrets nor where this start went on from."""
    given = {name: value for name, value in recipe.given.items() if name not in (*SECRET, *OF_ONE_START)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def make_trainer(recipe: Recipe, data: Data, built: BuiltModel) -> RecipeTrainer:
    """The trainer, with the way of translating written into the model."""
    model: Any = built.model
    model.generation_config.num_beams = recipe.model.num_beams
    if recipe.model.num_beams > 1:
        model.generation_config.length_penalty = recipe.model.length_penalty
    trainer = RecipeTrainer(
        model=model,
        args=recipe.training,
        train_dataset=data.pairs["train"],
        eval_dataset=data.pairs.get("validation"),
        data_collator=DataCollatorForSeq2Seq(data.tokenizer, model=model),
        processing_class=data.tokenizer,
    )
    if recipe.training.max_tokens_per_batch is not None:
        batches = len(trainer.get_train_dataloader())
        say(recipe.training, f"{batches} batches in an epoch, {100 * (trainer.padding_share or 0):.2f} % padding")
    trainer.missing_keys = built.missing_keys
    trainer.new_parameter_learning_rate = recipe.model.new_parameter_learning_rate
    if recipe.model.init_from is not None:
        say(
            recipe.training,
            f"warm start from {recipe.model.init_from}: {len(built.missing_keys)} new tensors, "
            f"{len(built.unused_keys)} of the checkpoint left out",
        )
    return trainer


def score(trainer: RecipeTrainer, recipe: Recipe, data: Data, split: str) -> dict[str, Any]:
    """Translate with beams and score against the whole references, not what the vocabulary's limit leaves of them."""
    beams = recipe.model.num_beams
    options: dict[str, Any] = {"num_beams": beams} | (
        {"length_penalty": recipe.model.length_penalty} if beams > 1 else {}
    )
    output = trainer.predict(data.pairs[split], metric_key_prefix=split, **options)
    # Where Transformers' own evaluation runs, under FSDP, processes fill up their last batches.
    tokens: Any = output.predictions[: len(data.pairs[split])]
    tokens[tokens < 0] = data.tokenizer.pad_token_id
    translations = data.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    references = [row[recipe.data.target] for row in data.corpora[split].pairs["translation"]]
    scores = corpus_scores(translations, references)
    say(recipe.training, f"{split}, {beams} beams\n{scores}")
    if recipe.training.process_index == 0:
        lines = "".join(f"{' '.join(text.split())}\n" for text in translations)
        (Path(str(recipe.training.output_dir)) / f"{split}.translations.txt").write_text(lines, encoding="utf-8")
    return {
        **scores.as_dict(),
        **options,
        "corpus": getattr(recipe.data, split),
        "sentences": len(references),
        "loss": (output.metrics or {}).get(f"{split}_loss"),
    }


def describe(
    recipe: Recipe, data: Data, built: BuiltModel, trainer: RecipeTrainer, record: RunRecord
) -> dict[str, Any]:
    """All that a result depends on; versions, device and processes are those that trained the last steps."""
    arguments = recipe.training
    model: PreTrainedModel = built.model
    segments = record.summary()
    return {
        "recipe": given_settings(recipe),
        "model": {**asdict(recipe.model), "config": model.config.to_diff_dict()},
        "data": asdict(recipe.data),
        "training": arguments.to_dict(),
        "seeds": {"run": arguments.seed, "pairs": data_seed(arguments), "corpora": recipe.data.corpus_seed},
        **{name: segments[-1][name] for name in ("versions", "device", "processes")},
        "segments": segments,
        "parameters": model.num_parameters(),
        "new_parameters": sorted(built.missing_keys),
        "unused_parameters": sorted(built.unused_keys),
        "vocabulary": len(data.tokenizer),
        "cleaning": {split: corpus.report.as_dict() for split, corpus in data.corpora.items()},
        "padding_share": trainer.padding_share,
    }


def learning_curves(trainer: RecipeTrainer) -> dict[str, Any]:
    """What was logged: training losses and evaluations."""
    history = trainer.state.log_history
    return {
        "loss_curve": [[row["step"], row.get("lm_loss", row["loss"])] for row in history if "loss" in row],
        "evaluations": [row for row in history if "eval_loss" in row],
    }
