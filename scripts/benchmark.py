"""Speed and memory of capsule models against stock Marian of the same size, in one run.

    python scripts/benchmark.py train  --models em,dynamic --baseline marian --device cpu --json out.json
    python scripts/benchmark.py decode --models em --baseline marian --device cpu --json out.json
    python scripts/benchmark.py scaling --models caps_nmt --device cpu --json out.json --plot out.png
    python scripts/benchmark.py decode --models caps_nmt,caps_nmt-int8,ctranslate2-int8 --threads 1

`caps_nmt-int8` is what `quantize_for_cpu` makes of `caps_nmt`. The `ctranslate2` models are stock Marian converted to
int8, `-6+1` with a decoder of one layer; they need the extra `benchmark`.

Models take turns step by step in one process, so that whatever else the machine does falls on all of them alike; the
figures are medians, and ratios are to the baseline of the same run. Peak memory on the CPU is what one process grows
by while it trains or decodes with one model alone; on CUDA it is the allocator's own peak. `scaling` measures encoder,
decode step and whole sentence against length; see `benchmark_scaling.py`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from benchmark_scaling import LENGTHS, measure_scaling, plot_scaling, print_scaling
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

import hf_capsule_mt
from hf_capsule_mt import (
    CapsNMTConfig,
    CapsNMTForConditionalGeneration,
    CapsuleAggregatedMarianConfig,
    CapsuleAggregatedMarianForConditionalGeneration,
    GDRMarianConfig,
    GDRMarianForConditionalGeneration,
    GDRRNMTConfig,
    GDRRNMTForConditionalGeneration,
    quantize_for_cpu,
)
from hf_capsule_mt.configuration.config_checks import field_defaults

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"d_model": 128, "layers": 3, "heads": 4, "ffn": 512, "vocab": 2000},
    "base": {"d_model": 512, "layers": 6, "heads": 8, "ffn": 2048, "vocab": 32000},
    "big": {"d_model": 1024, "layers": 6, "heads": 16, "ffn": 4096, "vocab": 32000},
}
ALL_ATTENTIONS = ["encoder_self", "decoder_cross", "decoder_self"]
HEADS_ONLY = {"layer_aggregation": "none", "head_aggregation": "em_routing"}
MODELS: dict[str, dict[str, Any] | None] = {
    "marian": None,
    "none": {"layer_aggregation": "none"},
    "linear": {"layer_aggregation": "linear_combination"},
    "dynamic-combination": {"layer_aggregation": "dynamic_combination"},
    "dynamic": {"layer_aggregation": "dynamic_routing"},
    "mean": {"layer_aggregation": "em_routing", "layer_routing_iterations": 1},
    "em": {"layer_aggregation": "em_routing"},
    "em-encoder": {"layer_aggregation": "em_routing", "layer_aggregation_side": "encoder"},
    "em-decoder": {"layer_aggregation": "em_routing", "layer_aggregation_side": "decoder"},
    "heads-em": HEADS_ONLY,
    "heads-simple": {"layer_aggregation": "none", "head_aggregation": "simple_routing"},
    "heads-em-two": {**HEADS_ONLY, "head_aggregation_layers": [0, 1]},
    "heads-em-all": {**HEADS_ONLY, "head_aggregation_attentions": ALL_ATTENTIONS},
    "gdr-none": {"past_future": "none"},
    "gdr": {"past_future": "guided_routing", "bow_loss_weight": 0.0, "bca_loss_weight": 0.0},
    "gdr-bca": {"past_future": "guided_routing", "bow_loss_weight": 0.0},
    "gdr-bow": {"past_future": "guided_routing", "bca_loss_weight": 0.0},
    "gdr-bow-bca": {"past_future": "guided_routing"},
    "gdr-classifier": {"past_future": "classifier"},
    "gdr-attention": {"past_future": "attention"},
    "rnmt": {"past_future": "none"},
    "rnmt-gdr": {"past_future": "guided_routing", "bow_loss_weight": 0.0, "bca_loss_weight": 0.0},
    "rnmt-gdr-bow-bca": {"past_future": "guided_routing"},
    "rnmt-recurrent": {"past_future": "recurrent", "bow_loss_weight": 0.0, "bca_loss_weight": 0.0},
    "caps_nmt": {"decoder_context": "fixed"},
    "caps_nmt-attention": {"decoder_context": "attention"},
    "caps_nmt-pooling": {"source_aggregation": "pooling"},
    "caps_nmt-int8": {},
    "ctranslate2-int8": None,
    "ctranslate2-int8-6+1": None,
}
DECODE_ONLY = ("caps_nmt-int8", "ctranslate2-int8", "ctranslate2-int8-6+1")
RECURRENT = {"recurrent_dim": 2, "attention_dim": 2}  # times d_model, as in Bahdanau et al. (512 and 1024)


def build(name: str, args: argparse.Namespace) -> PreTrainedModel:
    """A model of the asked size with random weights from the seed."""
    size = SIZES[args.size]
    last = size["vocab"] - 1
    common = {
        "vocab_size": size["vocab"],
        "d_model": size["d_model"],
        "encoder_layers": size["layers"],
        "decoder_layers": size["layers"],
        "encoder_attention_heads": size["heads"],
        "decoder_attention_heads": size["heads"],
        "encoder_ffn_dim": size["ffn"],
        "decoder_ffn_dim": size["ffn"],
        "max_position_embeddings": max([512, *(2 * length for length in args.lengths)]),
        "pad_token_id": last,
        "decoder_start_token_id": last,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    options = MODELS[name]
    torch.manual_seed(args.seed)
    model: PreTrainedModel
    if options is None:
        shallow = {"decoder_layers": 1} if name.endswith("6+1") else {}
        model = MarianMTModel(MarianConfig(**{**common, **shallow}))
    elif name.startswith("caps_nmt"):
        # The depths of the paper's base model: 4 layers and 3.
        shared = {field: value for field, value in common.items() if field in field_defaults(CapsNMTConfig)}
        shared.update(encoder_layers=CapsNMTConfig.encoder_layers, decoder_layers=CapsNMTConfig.decoder_layers)
        model = CapsNMTForConditionalGeneration(CapsNMTConfig(**{**shared, **options}))
    elif name.startswith("rnmt"):
        shared = {field: value for field, value in common.items() if field in field_defaults(GDRRNMTConfig)}
        recurrent = {field: factor * size["d_model"] for field, factor in RECURRENT.items()}
        recurrent.update(encoder_layers=1, decoder_layers=1)
        model = GDRRNMTForConditionalGeneration(GDRRNMTConfig(**{**shared, **recurrent, **options}))
    elif "past_future" in options:
        model = GDRMarianForConditionalGeneration(GDRMarianConfig(**common, **options))
    else:
        model = CapsuleAggregatedMarianForConditionalGeneration(CapsuleAggregatedMarianConfig(**common, **options))
    dtype = torch.bfloat16 if args.dtype == "bf16" and args.command != "train" else torch.float32
    return model.to(args.device, dtype)


def batch(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(args.seed)
    high = SIZES[args.size]["vocab"] - 1
    source = torch.randint(1, high, (args.batch, args.source_length), generator=generator)
    target = torch.randint(1, high, (args.batch, args.target_length), generator=generator)
    return {key: value.to(args.device) for key, value in {"input_ids": source, "labels": target}.items()}


def train_step(name: str, model: PreTrainedModel, args: argparse.Namespace) -> Callable[[], None]:
    """One step of training: forward, backward, AdamW in the form that the Trainer uses by default."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = batch(args)

    def step() -> None:
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def decode_step(name: str, model: PreTrainedModel, args: argparse.Namespace) -> Callable[[], None]:
    """One call of generate(): every model makes the same number of tokens."""
    model.eval()
    if name.startswith("ctranslate2"):
        return ctranslate2_step(model, args)
    if name.endswith("-int8"):
        model = quantize_for_cpu(model)
    source = batch(args)["input_ids"]
    length = args.target_length
    options = {"num_beams": args.beams, "do_sample": False, "max_new_tokens": length, "min_new_tokens": length}
    mask = torch.ones_like(source)

    def step() -> None:
        model.generate(input_ids=source, attention_mask=mask, **options)

    return step


def ctranslate2_step(model: PreTrainedModel, args: argparse.Namespace) -> Callable[[], None]:
    """The same of a Marian model, converted to CTranslate2 and int8."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    spec = MarianMTLoader().get_model_spec(model)
    words = [f"w{index}" for index in range(model.config.vocab_size - 1)]  # the converter leaves out the padding
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.eos_token = spec.config.decoder_start_token = words[model.config.eos_token_id]
    spec.config.unk_token = words[-1]
    spec.validate()
    spec.optimize(quantization="int8")
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        threads = torch.get_num_threads()
        translator = ctranslate2.Translator(folder, compute_type="int8", inter_threads=1, intra_threads=threads)
    source = [[words[index] for index in row] for row in batch(args)["input_ids"].tolist()]
    length = args.target_length
    options = {"beam_size": args.beams, "max_decoding_length": length, "min_decoding_length": length}

    def step() -> None:
        found = translator.translate_batch(source, **options)
        assert all(len(sentence.hypotheses[0]) == length for sentence in found)

    return step


STEPS = {"train": train_step, "decode": decode_step}


def synchronize(args: argparse.Namespace) -> None:
    if args.device == "cuda":
        torch.cuda.synchronize()


def measure(names: list[str], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Seconds a step of every model, taking turns."""
    models = {name: build(name, args) for name in names}
    steps = {name: STEPS[args.command](name, model, args) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(args.warmup + args.rounds):
        # Every second round backwards: no model always runs right after the same other one.
        for name in names if round_number % 2 == 0 else reversed(names):
            synchronize(args)
            start = time.perf_counter()
            steps[name]()
            synchronize(args)
            if round_number >= args.warmup:
                seconds[name].append(time.perf_counter() - start)
        print(f"\rround {round_number + 1}/{args.warmup + args.rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        name: {
            "parameters": models[name].num_parameters(),
            "median_s": statistics.median(values),
            "fastest_s": min(values),
            "slowest_s": max(values),
        }
        for name, values in seconds.items()
    }


def resident_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (highest so far) of this process; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def peak_memory(name: str, args: argparse.Namespace) -> int:
    """Bytes that one model needs at its peak, parameters and optimizer state included."""
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = resident_bytes("VmRSS") if args.device == "cpu" else torch.cuda.memory_allocated()
    step = STEPS[args.command](name, build(name, args), args)
    for _ in range(3):
        step()
    return (resident_bytes("VmHWM") if args.device == "cpu" else torch.cuda.max_memory_allocated()) - before


def peak_in_subprocess(name: str) -> int:
    """`peak_memory` in a process of its own, started with the arguments of this one."""
    command = [sys.executable, __file__, *sys.argv[1:], "--memory-of", name]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(output.strip().splitlines()[-1])


def device_name(args: argparse.Namespace) -> str:
    if args.device == "cuda":
        return torch.cuda.get_device_name()
    name, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {torch.get_num_threads()} threads"


def add_ratios(rows: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """Add ratios to the baseline and print the table."""
    base = rows[args.baseline]
    print(f"{'model':<20}{'parameters':>12}{'median ms':>12}{'time ratio':>12}{'peak MB':>10}{'memory ratio':>14}")
    for name, row in rows.items():
        row["time_ratio"] = row["median_s"] / base["median_s"]
        memory = f"{'not measured':>24}"
        if "peak_bytes" in row:
            row["memory_ratio"] = row["peak_bytes"] / base["peak_bytes"]
            memory = f"{row['peak_bytes'] / 1e6:>10.0f}{row['memory_ratio']:>14.3f}"
        speed = f"{row['median_s'] * 1e3:>12.1f}{row['time_ratio']:>12.3f}"
        print(f"{name:<20}{row['parameters'] / 1e6:>11.1f}M{speed}{memory}")


def report(rows: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """What goes into the JSON."""
    return {
        "what": args.command,
        "command": "python scripts/benchmark.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(args),
        "settings": {key: value for key, value in vars(args).items() if key not in ("json", "plot", "memory_of")},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "accelerate": accelerate.__version__,
            "hf_capsule_mt": hf_capsule_mt.__version__,
            **({"ctranslate2": sys.modules["ctranslate2"].__version__} if "ctranslate2" in sys.modules else {}),
        },
        "rows": rows,
    }


def numbers(text: str) -> list[int]:
    """Different integers from a comma-separated list, smallest first."""
    return sorted({int(part) for part in text.split(",")})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*sorted(STEPS), "scaling"])
    parser.add_argument("--models", default="em", help=f"comma-separated, any of {', '.join(MODELS)}")
    parser.add_argument("--baseline", default="marian", choices=sorted(MODELS))
    parser.add_argument("--size", default="base", choices=sorted(SIZES))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"), help="bf16: autocast when training")
    parser.add_argument("--batch", type=int, help="sentences a step; default 64 for train, 1 for decode")
    parser.add_argument(
        "--source-length", type=int, help="tokens; default 25 for decode, else 32; scaling: while the target grows"
    )
    parser.add_argument(
        "--target-length", type=int, help="tokens; default as the source; scaling: while the source grows"
    )
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=numbers, default=LENGTHS, help=f"scaling: tokens; default {LENGTHS}")
    parser.add_argument("--sentence-rounds", type=int, default=5, help="scaling: rounds with whole sentences")
    parser.add_argument("--repeats", type=int, default=8, help="scaling: times in a row, of which the median counts")
    parser.add_argument(
        "--clock",
        default="wall",
        choices=("wall", "processor"),
        help="scaling: processor time leaves out when a busy machine runs others; for --device cpu --threads 1",
    )
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, help="CPU threads of torch; default: as torch chooses")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--plot", type=Path, help="scaling: draw the results here, as PNG")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.batch = args.batch or (64 if args.command == "train" else 1)
    args.source_length = args.source_length or (25 if args.command == "decode" else 32)
    args.target_length = args.target_length or args.source_length
    if args.command != "scaling":
        args.lengths = []
        if args.plot:
            parser.error("--plot draws scaling only")
    elif len(args.lengths) < 4 or args.lengths[0] < 1:
        parser.error(f"--lengths {args.lengths}: at least four different ones, each at least 1, make a fit")
    if args.sentence_rounds < 1:
        parser.error(f"--sentence-rounds {args.sentence_rounds}: must be at least 1")
    if args.clock == "processor" and (args.device, args.threads) != ("cpu", 1):
        parser.error("--clock processor adds up the time of all threads: give --device cpu --threads 1")
    unknown = [name for name in args.models.split(",") if name not in MODELS]
    if unknown:
        parser.error(f"--models {','.join(unknown)}: no such model; choose from {', '.join(MODELS)}")
    alone = [name for name in (args.baseline, *args.models.split(",")) if name in DECODE_ONLY]
    if alone and (args.command != "decode" or args.device != "cpu" or args.dtype != "fp32"):
        parser.error(f"{','.join(alone)}: decodes on the CPU only, made from an fp32 model")
    if any(name.startswith("ctranslate2") for name in alone) and find_spec("ctranslate2") is None:
        parser.error(f"{','.join(alone)}: CTranslate2 is not installed; pip install -c constraints.txt '.[benchmark]'")
    return args


def main() -> None:
    args = parse()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.device == "cpu" and not Path("/proc/self/status").exists():
        print("peak memory on the CPU is read from /proc: not measured here", file=sys.stderr)
        args.no_memory = True
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.memory_of:
        print(peak_memory(args.memory_of, args))
        return
    names = list(dict.fromkeys([args.baseline, *args.models.split(",")]))
    print(f"seed {args.seed}, {device_name(args)}, {args.size}, {args.dtype}", file=sys.stderr)
    if args.command == "scaling":
        models = {name: build(name, args) for name in names}
        rows = measure_scaling(models, partial(decode_step, ""), lambda: synchronize(args), args)
        print_scaling(rows)
    else:
        rows = measure(names, args)
        for name, row in () if args.no_memory else rows.items():
            row["peak_bytes"] = peak_memory(name, args) if args.device == "cuda" else peak_in_subprocess(name)
        add_ratios(rows, args)
    results = report(rows, args)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=2, default=str) + "\n")
        print(f"written to {args.json}")
    if args.plot:
        plot_scaling(results, args.plot)
        print(f"drawn in {args.plot}")


if __name__ == "__main__":
    main()
