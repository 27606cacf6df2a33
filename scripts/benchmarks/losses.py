"""`benchmark.py loss`: cross-entropy and bag of words over a large vocabulary, in several implementations.

- `logits`, `scores`: keep a number for every word at every position.
- `blocks`: `modeling/losses/vocabulary.py`, which computes the gradient in the forward pass.
- `recomputed`: computes each block again in the backward pass.
- `torch`: PyTorch's chunked `linear_cross_entropy`, in PyTorch 2.13 and later.

A step is one forward and one backward pass.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.measure import peak_growth, peak_in_subprocess, spread, take_turns
from hf_capsule_mt.modeling.losses.seq2seq import summed_cross_entropy
from hf_capsule_mt.modeling.losses.vocabulary import (
    CPU_BLOCK_ELEMENTS,
    cross_entropy_of_states,
    log_partition_in_blocks,
)

TERMS = ("translation", "bag_of_words")
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def recomputed(of_scores: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    def loss(hidden: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        length = max(1, CPU_BLOCK_ELEMENTS // len(embedding))
        parts = [
            checkpoint(lambda h, e, y: of_scores(h @ e.mT, y), h, embedding, y, use_reentrant=False)
            for h, y in zip(hidden.split(length), labels.split(length), strict=True)
        ]
        return torch.stack(parts).sum()

    return loss


def chunked_by_torch(hidden: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return functional.linear_cross_entropy(hidden, embedding, labels, reduction="sum", options=options)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores.float(), labels, reduction="sum")


def log_sum_exp(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.float().logsumexp(dim=-1).sum()


def label_scores(hidden: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
    return (hidden * functional.embedding(labels, embedding)).sum()


WAYS: dict[str, dict[str, Loss]] = {
    "translation": {
        "logits": lambda h, e, y: summed_cross_entropy(h @ e.mT, y),
        "logits, PyTorch's loss": lambda h, e, y: cross_entropy(h @ e.mT, y),
        "blocks": lambda h, e, y: cross_entropy_of_states(h, e, y)[0],
        "recomputed": recomputed(cross_entropy),
        "torch": chunked_by_torch,
    },
    "bag_of_words": {
        "scores": lambda h, e, y: log_sum_exp(h @ e.mT, y),
        "blocks": lambda h, e, y: log_partition_in_blocks(h, e, torch.ones(len(h), device=h.device)),
        "recomputed": recomputed(log_sum_exp),
        "torch": lambda h, e, y: chunked_by_torch(h, e, y) + label_scores(h, e, y),
    },
}


def steps_of(term: str, args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """A step of every implementation of a term. The bag of words has two rows a position: past and future."""
    generator = torch.Generator(args.device).manual_seed(args.seed)
    rows = args.positions * (2 if term == "bag_of_words" else 1)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    hidden = torch.randn(rows, args.width, generator=generator, device=args.device).to(dtype).requires_grad_()
    embedding = torch.randn(args.vocabulary, args.width, generator=generator, device=args.device) * args.width**-0.5
    embedding = embedding.to(dtype).requires_grad_()
    labels = torch.randint(0, args.vocabulary, (rows,), generator=generator, device=args.device)

    def step(way: Loss) -> None:
        torch.autograd.grad(way(hidden, embedding, labels), (hidden, embedding))

    has_torch = hasattr(functional, "linear_cross_entropy")
    return {name: lambda way=way: step(way) for name, way in WAYS[term].items() if has_torch or name != "torch"}


def loss_memory(name: str, args: argparse.Namespace) -> int:
    term, way = name.split("/")
    step = steps_of(term, args)[way]
    return peak_growth(lambda: step, args, calls=1)


def measure_losses(args: argparse.Namespace, argv: list[str]) -> dict[str, Any]:
    """A row for every term and implementation, with ratios to the first implementation of the term."""
    rows: dict[str, Any] = {}
    for term in args.terms:
        seconds = take_turns(steps_of(term, args), args)
        term_rows = {f"{term}/{way}": spread(times) for way, times in seconds.items()}
        base = next(iter(term_rows.values()))
        for name, row in term_rows.items():
            row["time_ratio"] = row["median_s"] / base["median_s"]
            if not args.no_memory:
                command = [*argv, "--memory-of", name]
                row["peak_bytes"] = loss_memory(name, args) if args.device == "cuda" else peak_in_subprocess(command)
                row["memory_ratio"] = row["peak_bytes"] / base["peak_bytes"]
        rows |= term_rows
    return rows


def print_losses(rows: dict[str, Any]) -> None:
    print(f"{'loss':<40}{'median ms':>12}{'time ratio':>12}{'peak MB':>10}{'memory ratio':>14}")
    for name, row in rows.items():
        memory = f"{row['peak_bytes'] / 1e6:>10.0f}{row['memory_ratio']:>14.3f}" if "peak_bytes" in row else ""
        print(f"{name:<40}{row['median_s'] * 1e3:>12.1f}{row['time_ratio']:>12.3f}{memory}")
