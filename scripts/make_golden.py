"""Make the golden checkpoints: tiny committed models with their exact outputs. `tests/modeling` compares them.

    python scripts/make_golden.py [--family gdr_marian]

A golden checkpoint is a promise that models saved today give the same translations tomorrow. Run this script only for
the first checkpoint of a family, or if outputs must change (a corrected equation, for example) and the changelog says
so. Never run it to make a failing test pass. A new file format or a renamed weight is not a reason either: old
checkpoints must still load.
"""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_capsule_mt import (
    CapsNMTConfig,
    CapsNMTForConditionalGeneration,
    CapsuleAggregatedMarianConfig,
    CapsuleAggregatedMarianForConditionalGeneration,
    GDRMarianConfig,
    GDRMarianForConditionalGeneration,
    GDRRNMTConfig,
    GDRRNMTForConditionalGeneration,
)

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
SEED = 1906
DIGITS = 5

END, PAD = 0, 1
SOURCES = [[9, 23, 4, 31, 17, END], [12, 40, 8, END], [30, 5, 5, 21, 44, 16, 2, END]]
TARGETS = [[14, 7, 33, 20, END], [41, 3, 26, 11, 9, 38, END], [6, 35, END]]

COMMON: dict[str, Any] = {
    "vocab_size": 47,
    "d_model": 16,
    "eos_token_id": END,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "forced_eos_token_id": None,
    "dropout": 0.1,
}
MARIAN_SIZES: dict[str, Any] = {
    **COMMON,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 24,
    "init_std": 0.3,
}
PAST_FUTURE: dict[str, Any] = {
    "past_capsules": 2,
    "future_capsules": 3,
    "redundant_capsules": 1,
    "capsule_dim": 6,
    "bow_loss_weight": 0.1,
    "bca_loss_weight": 0.1,
}


def build_capsule_aggregated_marian() -> Any:
    """EM over the layers of both sides; simple routing over the heads of all attentions in the lower layers."""
    config = CapsuleAggregatedMarianConfig(
        **MARIAN_SIZES,
        layer_num_capsules=8,
        head_aggregation="simple_routing",
        head_aggregation_attentions=["encoder_self", "decoder_cross", "decoder_self"],
        head_aggregation_layers=[0, 1],
        head_num_capsules=4,
    )
    return CapsuleAggregatedMarianForConditionalGeneration(config)


def build_gdr_marian() -> Any:
    """Guided routing with redundant capsules and both auxiliary losses; dynamic routing over the layers."""
    config = GDRMarianConfig(
        **MARIAN_SIZES,
        **PAST_FUTURE,
        layer_aggregation="dynamic_routing",
        layer_num_capsules=4,
    )
    return GDRMarianForConditionalGeneration(config)


def build_gdr_rnmt() -> Any:
    """Guided routing with both auxiliary losses on two bidirectional layers and a conditional GRU."""
    config = GDRRNMTConfig(
        **COMMON,
        **PAST_FUTURE,
        recurrent_dim=12,
        attention_dim=20,
        encoder_layers=2,
        decoder_ffn_dim=28,
        init_std=0.3,
    )
    return GDRRNMTForConditionalGeneration(config)


def build_caps_nmt() -> Any:
    """Capsules with all three strategies, and the attention of the hybrid."""
    config = CapsNMTConfig(
        **COMMON,
        encoder_layers=3,
        decoder_layers=2,
        init_std=0.8,
        num_capsules=4,
        decoder_context="attention",
    )
    return CapsNMTForConditionalGeneration(config)


BUILDERS = {
    "caps_nmt": build_caps_nmt,
    "capsule_aggregated_marian": build_capsule_aggregated_marian,
    "gdr_marian": build_gdr_marian,
    "gdr_rnmt": build_gdr_rnmt,
}


@torch.no_grad()
def randomize(model: Any) -> None:
    """Move weights far from their initial values, so that routing prefers some capsules and sentences differ."""
    em = {name.rpartition(".router")[0] for name, _ in model.named_parameters() if name.endswith("router.beta_a")}
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "beta_" in name:
            parameter.copy_(2.0 * noise)
        elif name.endswith("past_future.fc2.weight"):
            parameter.copy_(0.1 * noise)
        elif name.endswith("score_weight"):
            parameter.copy_(noise)
        elif ".votes." in name:
            parameter.mul_(4.0 if name.partition(".votes")[0] in em else 1.5)
        elif ".encoder_attn." in name and name.endswith("v_proj.weight"):
            parameter.mul_(2.0)
        elif "norm.weight" in name:
            parameter.copy_(1.0 + 0.2 * noise)
        elif parameter.dim() == 1:
            parameter.add_(0.2 * noise)
    model.final_logits_bias.copy_(0.5 * torch.randn_like(model.final_logits_bias))
    model.final_logits_bias[:, END] = 2.0
    model.generation_config.bad_words_ids = [[PAD]]
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.max_length = 12


def padded(rows: list[list[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)


@torch.no_grad()
def outputs_of(model: Any) -> dict[str, Any]:
    """All outputs that the test compares, as JSON values."""
    model.eval()
    sources = padded(SOURCES, PAD)
    inputs = {"input_ids": sources, "attention_mask": (sources != PAD).long()}
    labels = padded(TARGETS, -100)
    outputs = model(**inputs, labels=labels, output_routings=True)
    beams = model.generate(
        **inputs, num_beams=3, num_return_sequences=2, return_dict_in_generate=True, output_scores=True
    )
    real = (labels != -100).unsqueeze(-1)
    return {
        "logits": rounded(outputs.logits * real),
        "loss": rounded(outputs.loss),
        "greedy": model.generate(**inputs).tolist(),
        "beams": beams.sequences.tolist(),
        "beam_scores": rounded(beams.sequences_scores),
        # The last iteration at the first position of the first sentence.
        "routings": {site: rounded(values[-1, 0, 0]) for site, values in sorted(outputs.routings.items())},
    }


def rounded(tensor: Tensor) -> Any:
    def walk(value: Any) -> Any:
        return [walk(part) for part in value] if isinstance(value, list) else round(value, DIGITS)

    return walk(tensor.double().tolist())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(BUILDERS), help="one family; default: all")
    parser.add_argument("--output", type=Path, default=GOLDEN, help="parent of the new folders")
    arguments = parser.parse_args()
    for family in [arguments.family] if arguments.family else sorted(BUILDERS):
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
        model = BUILDERS[family]()
        randomize(model)
        folder = arguments.output / family
        model.save_pretrained(folder)
        command = f"python scripts/make_golden.py --family {family}"
        made = {
            "command": command,
            "seed": SEED,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        }
        content = {"made": made, "sources": SOURCES, "targets": TARGETS, **outputs_of(model)}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
        (folder / "outputs.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder.name}: seed {SEED}, {size / 1000:.0f} kB, made by: {command}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
