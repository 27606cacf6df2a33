"""What a run prints about its seeds, its start, its trainer and, if there is nothing to do, its results."""

import platform
from pathlib import Path
from typing import Any

import torch

from hf_capsule_mt.recipes.corpora import print_once
from hf_capsule_mt.recipes.model import BuiltModel
from hf_capsule_mt.recipes.recipe import Recipe
from hf_capsule_mt.recipes.running.output_folder import RESULTS
from hf_capsule_mt.recipes.running.record import Start, unused_folder
from hf_capsule_mt.recipes.running.settings import data_seed, length_setting
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer

X86 = ("x86_64", "AMD64")  # where `cpu_has_bfloat16` knows the instructions


def print_seeds(recipe: Recipe) -> None:
    """Prints the seeds, the device and the number of processes, and what would be faster."""
    arguments = recipe.training
    print_once(
        arguments,
        f"seeds: {arguments.seed} (Python, NumPy, PyTorch), {data_seed(arguments)} (order of the pairs), "
        f"{recipe.data.corpus_seed} (synthetic corpora)",
    )
    processes = f"{arguments.world_size} process{'es' if arguments.world_size > 1 else ''}"
    print_once(arguments, f"device: {arguments.device.type}, {processes}")
    if arguments.device.type != "cpu":
        return
    if arguments.bf16 and platform.machine() in X86 and not cpu_has_bfloat16():
        print_once(
            arguments,
            "this processor has no bfloat16 instructions: with --bf16 a step may take ten times as long, leave it out",
        )
    elif not (arguments.bf16 or arguments.fp16) and cpu_has_bfloat16():
        print_once(
            arguments, "this processor has bfloat16 instructions: base-size models train faster with --bf16 --use_cpu"
        )


def cpu_has_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions (AVX512-BF16, AMX). Without them float32 is faster."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, test)() for test in tests if hasattr(torch.cpu, test))


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


def print_trainer(recipe: Recipe, built: BuiltModel, trainer: CapsuleSeq2SeqTrainer) -> None:
    """Prints what batches, ablation, attention and warm start of the run are like."""
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


def print_finished(recipe: Recipe, start: Start, results: dict[str, Any]) -> None:
    """Prints what a finished run has, and that nothing was written."""
    folder = Path(str(recipe.training.output_dir))
    scores = [f"{split} BLEU {results[split]['bleu']:.2f}" for split in ("validation", "test") if split in results]
    print_once(recipe.training, ", ".join([f"{folder}: the run is finished, {results['steps']} steps", *scores]))
    if start.without_effect:
        print_once(
            recipe.training, f"Changed, but without effect on a finished run: {', '.join(start.without_effect)}."
        )
    length = length_setting(start.record.settings)
    longer = f"For a longer run raise {length}"
    if start.stopped_early:
        longer = f"early_stopping_patience ended it, so a larger {length} has no effect"
    print_once(
        recipe.training,
        f"Nothing was written. {longer}; for another run choose another output_dir, such as {unused_folder(folder)}.",
    )


def same_command(recipe: Recipe) -> str:
    """The command that continues an interrupted run, in words."""
    if recipe.training.resume_from_checkpoint is not None:
        return "the same command without --resume_from_checkpoint"
    return "the same command" if recipe.training.resume else "the same command without --no_resume"
