"""Running a recipe: corpora, tokenizer, model, training, translation of the test set, and `results.json`.

Under `accelerate launch` every process runs all of it. What is written is written by the main process alone, which
prepares the data before the others, so that they find it.
"""

import json
import platform
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    set_seed,
)

from hf_capsule_mt.evaluation.scores import corpus_scores
from hf_capsule_mt.training.checkpoint_files import last_checkpoint, named_checkpoint, put_in_place
from hf_capsule_mt.training.parameter_groups import NewParameterLearningRate
from hf_capsule_mt.training.processes import main_first
from hf_capsule_mt.training.recipe import Recipe
from hf_capsule_mt.training.recipe_data import Data, load_data, say
from hf_capsule_mt.training.recipe_fields import RecipeTrainingArguments
from hf_capsule_mt.training.recipe_model import BuiltModel, build_model, checkpoint_config
from hf_capsule_mt.training.study import versions
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer

RECIPE, RESULTS = "recipe.yaml", "results.json"
# Of a recipe, what may change when a run is taken up again: all but the model and what it learns from.
MAY_CHANGE = frozenset(RecipeTrainingArguments.__dataclass_fields__) | {
    *("validation", "test", "num_proc", "cache_dir", "num_beams", "length_penalty")
}
SECRET = ("hub_token",)


class Interrupted(Exception):
    """SIGTERM has ended the run early, with a checkpoint; says after which step."""


class RecipeTrainer(NewParameterLearningRate, CapsuleSeq2SeqTrainer):
    """The trainer of a recipe."""


def run_recipe(recipe: Recipe) -> dict[str, Any]:
    """Train, evaluate and save by a recipe; returns what stands in `results.json`."""
    started = time.perf_counter()
    arguments = recipe.training
    folder = Path(str(arguments.output_dir))
    checkpoint = checkpoint_to_resume(arguments)
    family, init_from = str(recipe.model.family), recipe.model.init_from
    if init_from is not None:
        checkpoint_config(family, init_from)  # before the corpora are read
    say(
        arguments,
        f"seeds: {arguments.seed} (Python, NumPy, PyTorch), {data_seed(arguments)} (order of the pairs), "
        f"{recipe.data.corpus_seed} (synthetic corpora)",
    )
    if arguments.device.type == "cpu" and not (arguments.bf16 or arguments.fp16) and cpu_computes_in_bfloat16():
        say(arguments, "this processor computes in bfloat16: a model of base size trains faster with --bf16 --use_cpu")
    with main_first():
        if arguments.process_index == 0:
            prepare_folder(recipe, folder, checkpoint)
        data = load_data(recipe, folder, trained=checkpoint is not None or arguments.process_index != 0)
    set_seed(arguments.seed)
    built = build_model(family, recipe.config, data.tokenizer, init_from)
    trainer = make_trainer(recipe, data, built)
    # Named only where the user did: what the run has found by itself is for it to clear away.
    metrics = trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint or checkpoint is not None).metrics
    if trainer.interrupted:
        say(arguments, f"interrupted after step {trainer.state.global_step}; the same command goes on from there")
        raise Interrupted(trainer.state.global_step)
    trainer.save_model()
    trainer.save_state()
    results: dict[str, Any] = {
        **describe(recipe, data, built, trainer),
        "resumed_from": checkpoint,
        "steps": trainer.state.global_step,
        "train_seconds": metrics["train_runtime"],
        "target_tokens_per_second": metrics.get("train_target_tokens_per_second"),
        **learning_curves(trainer),
        **{split: score(trainer, recipe, data, split) for split in ("validation", "test") if split in data.pairs},
        "wall_seconds": time.perf_counter() - started,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if arguments.process_index == 0:
        part = folder / f"{RESULTS}.part"
        part.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(folder / RESULTS)
    return results


def cpu_computes_in_bfloat16() -> bool:
    """Whether the processor has instructions for it (AVX512-BF16, AMX); others are slower in it than in float32."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, test)() for test in tests if hasattr(torch.cpu, test))


def data_seed(arguments: RecipeTrainingArguments) -> int:
    return arguments.seed if arguments.data_seed is None else arguments.data_seed


def checkpoint_to_resume(arguments: RecipeTrainingArguments) -> str | None:
    """The checkpoint that is named, or the last one in the output folder."""
    if arguments.resume_from_checkpoint is not None:
        return named_checkpoint(arguments.resume_from_checkpoint)
    folder = str(arguments.output_dir)
    put_in_place(folder)
    last = last_checkpoint(folder)
    if last is not None and not arguments.resume:
        raise ValueError(
            f"{folder} holds {last.name}, and resume is off: choose another output_dir, or remove the old run"
        )
    return None if last is None else named_checkpoint(str(last))


def prepare_folder(recipe: Recipe, folder: Path, checkpoint: str | None) -> None:
    """Writes the recipe down; to go on with a run that has another model or other data is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {name: value for name, value in recipe.given.items() if name not in SECRET}
    if checkpoint is not None and (folder / RECIPE).exists():
        before = yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError(f"{folder / RECIPE} is damaged: remove it to go on with the run beside it")
        changed = sorted(name for name in {*given, *before} - MAY_CHANGE if given.get(name) != before.get(name))
        if changed:
            name = changed[0]
            raise ValueError(
                f"{folder} holds a run of another recipe: {name} was {before.get(name)!r}, now {given.get(name)!r}; "
                "choose another output_dir"
            )
    part = folder / f"{RECIPE}.part"
    part.write_text(yaml.safe_dump(given, sort_keys=False, allow_unicode=True), encoding="utf-8")
    part.replace(folder / RECIPE)


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
        "sentences": len(references),
        "loss": (output.metrics or {}).get(f"{split}_loss"),
    }


def describe(recipe: Recipe, data: Data, built: BuiltModel, trainer: RecipeTrainer) -> dict[str, Any]:
    """All that a result depends on."""
    arguments = recipe.training
    model: PreTrainedModel = built.model
    gpu = arguments.device.type == "cuda"
    return {
        "recipe": {name: value for name, value in recipe.given.items() if name not in SECRET},
        "model": {**asdict(recipe.model), "config": model.config.to_diff_dict()},
        "data": asdict(recipe.data),
        "training": arguments.to_dict(),
        "seeds": {"run": arguments.seed, "pairs": data_seed(arguments), "corpora": recipe.data.corpus_seed},
        "versions": versions(),
        "device": torch.cuda.get_device_name(arguments.device) if gpu else f"CPU, {platform.machine()}",
        "processes": arguments.world_size,
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
