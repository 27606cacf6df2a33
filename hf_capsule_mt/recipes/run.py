"""Runs a recipe: corpora, tokenizer, model, training, translation of the test set, and `results.json`.

Under `accelerate launch` each process runs all steps. Only the main process writes files. It prepares the data first,
and the other processes read it.
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

from hf_capsule_mt.analysis.curve_pictures import plot_learning_curves
from hf_capsule_mt.evaluation.logged_losses import logged_losses
from hf_capsule_mt.evaluation.scores import corpus_scores
from hf_capsule_mt.recipes.bow_accuracy import measure_bow_accuracy, write_coverage_scales
from hf_capsule_mt.recipes.corpora import Data, check_folders, load_data, print_once
from hf_capsule_mt.recipes.fields import RecipeTrainingArguments
from hf_capsule_mt.recipes.generation_settings import set_generation
from hf_capsule_mt.recipes.lengths import fit_lengths
from hf_capsule_mt.recipes.model import BuiltModel, build_model, checkpoint_config, default_config
from hf_capsule_mt.recipes.output_folder import RECIPE, RESULTS, check_init_from
from hf_capsule_mt.recipes.recipe import Recipe
from hf_capsule_mt.recipes.run_record import RunRecord, Start, begin_run, now, unused_folder
from hf_capsule_mt.recipes.run_settings import RESUME_KEYS, SECRET
from hf_capsule_mt.recipes.strict_yaml import dump_yaml
from hf_capsule_mt.training.checkpoints.folder_lock import FolderLock
from hf_capsule_mt.training.parameter_groups import NewParameterLearningRate
from hf_capsule_mt.training.processes import from_main, main_first
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer


class Interrupted(Exception):
    """A signal ended the run early, and a checkpoint was saved. Holds the step and the exit code for the shell."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        super().__init__(step)
        self.exit_code = 128 + number


def run_recipe(recipe: Recipe) -> dict[str, Any]:
    """Trains, evaluates and saves as the recipe says, and returns the content of `results.json`.

    A finished run is left unchanged. Another process that writes to the same folder is an error.
    """
    with ExitStack() as stack:
        return _run(recipe, stack)


def _run(recipe: Recipe, stack: ExitStack) -> dict[str, Any]:
    started = time.perf_counter()
    arguments = recipe.training
    folder = Path(str(arguments.output_dir))
    family, init_from = str(recipe.model.family), recipe.model.init_from
    # Check the lengths before the corpora are read.
    base = default_config(family) | recipe.config if init_from is None else checkpoint_config(family, init_from)
    owner = "the model" if init_from is None else f"the checkpoint {init_from}"
    for line in fit_lengths(recipe, base.get("max_position_embeddings"), owner):
        print_once(arguments, line)
    check_folders(recipe, folder)
    check_init_from(init_from, folder)
    arguments.device  # noqa: B018  (connects the processes)
    start: Start = from_main(PartialState(), lambda: lock_and_begin(recipe, stack))
    if start.nothing_to_do:
        return finished_results(recipe, start)
    print_seeds(recipe)
    print_start(recipe, start)
    with main_first():
        if arguments.process_index == 0:
            write_recipe(recipe, start)
        data = load_data(recipe, folder, trained=start.checkpoint is not None or arguments.process_index != 0)
    set_seed(arguments.seed)
    built = build_model(family, recipe.config, data.tokenizer, init_from)
    trainer = make_trainer(recipe, data, built)
    # Pass a path only if the user named it: the trainer may remove a checkpoint that it found itself.
    resumed = arguments.resume_from_checkpoint or start.checkpoint is not None
    metrics = trainer.train(resume_from_checkpoint=resumed).metrics
    if trainer.interrupted:
        step = trainer.state.global_step
        print_once(arguments, f"interrupted after step {step}, which is saved; the same command continues from there")
        raise Interrupted(step, trainer.interrupted_by or signal.SIGTERM)
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):  # there no process holds the whole model
        split = "validation" if "validation" in data.corpora else "train"
        with trainer.ablated_routing.in_model(built.model):
            # Scales from sentences that training saw would be too small.
            measures = (measure_bow_accuracy, write_coverage_scales)[: 2 if split == "validation" else 1]
            for measure in measures:
                pairs = (row["translation"] for row in data.corpora[split].pairs)
                measure(built.model, data.tokenizer, pairs, recipe.data.source, recipe.data.target)
    # Score before saving the model: a loss that is not finite ends the run here.
    splits = [split for split in ("validation", "test") if split in data.pairs]
    scores: dict[str, Any] = {split: score_split(trainer, recipe, data, split) for split in splits}
    trainer.save_model()
    trainer.save_state()
    start.record.finish(trainer.state.global_step)
    results: dict[str, Any] = {
        **describe_run(recipe, data, built, trainer, start.record),
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
        draw_learning_curves(folder)
    return results


def draw_learning_curves(folder: Path) -> None:
    """Draws the learning curves beside `results.json`, or says in one line why it does not."""
    try:
        plot_learning_curves(folder)
    except ImportError as error:
        print(f"no pictures of the learning curves: {error}", flush=True)


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes `results.json`. An infinite or NaN number is an error, because JSON has none."""
    try:
        text = json.dumps(results, indent=1, default=str, allow_nan=False)
    except ValueError as error:
        raise ValueError(
            f"{folder / RESULTS} was not written: {non_finite_entry(results)} is not finite, and JSON has no such "
            "number; training has diverged, or a setting is infinite"
        ) from error
    unfinished = folder / f"{RESULTS}.part"
    unfinished.write_text(f"{text}\n", encoding="utf-8")
    unfinished.replace(folder / RESULTS)


def non_finite_entry(value: Any, name: str = "") -> str | None:
    """The dotted name of the first number in nested results that is infinite or not a number."""
    if isinstance(value, float):
        return None if math.isfinite(value) else name
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    names = (non_finite_entry(entry, f"{name}.{key}" if name else str(key)) for key, entry in entries)
    return next((one for one in names if one is not None), None)


def lock_and_begin(recipe: Recipe, stack: ExitStack) -> Start:
    """Locks the folder until the stack closes, and decides how the run begins. A finished run writes nothing."""
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
    """Prints and returns the results of a finished run."""
    folder = Path(str(recipe.training.output_dir))
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    scores = [f"{split} BLEU {results[split]['bleu']:.2f}" for split in ("validation", "test") if split in results]
    print_once(recipe.training, ", ".join([f"{folder}: the run is finished, {results['steps']} steps", *scores]))
    if start.without_effect:
        print_once(
            recipe.training, f"Changed, but without effect on a finished run: {', '.join(start.without_effect)}."
        )
    print_once(
        recipe.training,
        f"Nothing was written. For a longer run raise max_steps; for another run choose another output_dir, such as "
        f"{unused_folder(folder)}.",
    )
    return results


def print_seeds(recipe: Recipe) -> None:
    arguments = recipe.training
    print_once(
        arguments,
        f"seeds: {arguments.seed} (Python, NumPy, PyTorch), {data_seed(arguments)} (order of the pairs), "
        f"{recipe.data.corpus_seed} (synthetic corpora)",
    )
    if arguments.device.type == "cpu" and not (arguments.bf16 or arguments.fp16) and cpu_has_bfloat16():
        print_once(
            arguments, "this processor has bfloat16 instructions: base-size models train faster with --bf16 --use_cpu"
        )


def print_start(recipe: Recipe, start: Start) -> None:
    """Prints the checkpoint the run continues from, and the changed settings."""
    if start.checkpoint is None:
        return
    segment = start.record.summary()[-1]
    print_once(recipe.training, f"continuing from {start.checkpoint}, after step {segment['from_step']}")
    for name, (before, after) in segment["changed"].items():
        print_once(recipe.training, f"  {name} was {before!r}, now {after!r}")
    if len(start.record.segments) > 1 and segment["learning_rate"] != start.record.segments[-2]["learning_rate"]:
        print_once(recipe.training, f"  learning rate from here on: {segment['learning_rate']}")


def cpu_has_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions (AVX512-BF16, AMX). Without them float32 is faster."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, test)() for test in tests if hasattr(torch.cpu, test))


def data_seed(arguments: RecipeTrainingArguments) -> int:
    return arguments.seed if arguments.data_seed is None else arguments.data_seed


def write_recipe(recipe: Recipe, start: Start) -> None:
    """Writes the recipe, and the record of the run with the new segment."""
    folder = Path(str(recipe.training.output_dir))
    folder.mkdir(parents=True, exist_ok=True)
    text = dump_yaml(repeatable_settings(recipe))
    if any(segment["changed"] for segment in start.record.summary()):
        text = f"# Not all steps were trained with these settings: see the segments in {RESULTS}.\n{text}"
    unfinished = folder / f"{RECIPE}.part"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(folder / RECIPE)
    start.record.write(folder)


def repeatable_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that repeat the run: without secrets, and without the checkpoint this start continued from."""
    settings = {name: value for name, value in recipe.explicit.items() if name not in (*SECRET, *RESUME_KEYS)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def make_trainer(recipe: Recipe, data: Data, built: BuiltModel) -> CapsuleSeq2SeqTrainer:
    """The trainer. Also writes into the model the settings of the final translations."""
    model: Any = built.model
    for line in set_generation(model, recipe):
        print_once(recipe.training, line)
    rate = recipe.model.new_parameter_learning_rate
    trainer = CapsuleSeq2SeqTrainer(
        model=model,
        args=recipe.training,
        train_dataset=data.pairs["train"],
        eval_dataset=data.pairs.get("validation"),
        data_collator=DataCollatorForSeq2Seq(data.tokenizer, model=model),
        processing_class=data.tokenizer,
        new_parameters=None if rate is None else NewParameterLearningRate(rate, built.missing_keys),
    )
    if recipe.training.max_tokens_per_batch is not None:
        batches = len(trainer.get_train_dataloader())
        print_once(
            recipe.training, f"{batches} batches in an epoch, {100 * (trainer.padding_share or 0):.2f} % padding"
        )
    if recipe.training.routing_ablation is not None:
        print_once(
            recipe.training,
            f"routing_ablation={recipe.training.routing_ablation!r} replaces the assignments of routing. {RESULTS} "
            "and the card say so, the weights do not: use them inside the context routing_ablation",
        )
    if trainer.attention.reason:
        print_once(recipe.training, trainer.attention.reason)
    if recipe.model.init_from is not None:
        print_once(
            recipe.training,
            f"warm start from {recipe.model.init_from}: {len(built.missing_keys)} new tensors, "
            f"{len(built.unused_keys)} unused tensors of the checkpoint",
        )
    return trainer


def score_split(trainer: CapsuleSeq2SeqTrainer, recipe: Recipe, data: Data, split: str) -> dict[str, Any]:
    """Translates with beams and scores against the original references, which are not cut or tokenised."""
    beams = recipe.model.num_beams
    options: dict[str, Any] = {"num_beams": beams} | (
        {"length_penalty": recipe.model.length_penalty} if beams > 1 else {}
    )
    output = trainer.predict(data.pairs[split], metric_key_prefix=split, **options)
    # Under FSDP, Transformers' own evaluation runs, and processes pad their last batches with repeated rows.
    tokens: Any = output.predictions[: len(data.pairs[split])]
    tokens[tokens < 0] = data.tokenizer.pad_token_id
    translations = data.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    references = [row[recipe.data.target] for row in data.corpora[split].pairs["translation"]]
    scores = corpus_scores(translations, references)
    print_once(recipe.training, f"{split}, {beams} beams\n{scores}")
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


def describe_run(
    recipe: Recipe, data: Data, built: BuiltModel, trainer: CapsuleSeq2SeqTrainer, record: RunRecord
) -> dict[str, Any]:
    """Everything a result depends on. Versions, device and processes are those of the last segment."""
    arguments = recipe.training
    model: PreTrainedModel = built.model
    segments = record.summary()
    return {
        "recipe": repeatable_settings(recipe),
        "model": {**asdict(recipe.model), "config": model.config.to_diff_dict()},
        "data": asdict(recipe.data),
        "training": arguments.to_dict(),
        "seeds": {"run": arguments.seed, "pairs": data_seed(arguments), "corpora": recipe.data.corpus_seed},
        **{name: segments[-1][name] for name in ("versions", "device", "processes")},
        "segments": segments,
        "routing_ablation": trainer.ablated_routing.as_dict(),
        "parameters": model.num_parameters(),
        "new_parameters": sorted(built.missing_keys),
        "unused_parameters": sorted(built.unused_keys),
        "vocabulary": len(data.tokenizer),
        "cleaning": {split: corpus.report.as_dict() for split, corpus in data.corpora.items()},
        "padding_share": trainer.padding_share,
    }


def learning_curves(trainer: CapsuleSeq2SeqTrainer) -> dict[str, Any]:
    """The logged training losses and evaluations, and whether these losses have label smoothing."""
    history = trainer.state.log_history
    losses, is_plain = logged_losses(history)
    return {
        "loss_curve": losses,
        "loss_curve_has_label_smoothing": trainer.args.label_smoothing_factor > 0 and not is_plain,
        "evaluations": [row for row in history if "eval_loss" in row],
    }
