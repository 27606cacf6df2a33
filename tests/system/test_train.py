"""`scripts/train.py` as a newcomer calls it: a shipped recipe with overrides, and a slip of the pen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RECIPE = "scripts/recipes/synthetic/dla_em.yaml"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/train.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.system
def test_a_shipped_recipe_trains_and_leaves_what_was_promised(tmp_path: Path):
    small = ["--train", "synthetic:300:8", "--validation", "synthetic:10:8", "--test", "synthetic:10:8"]
    steps = ["--max_steps", "12", "--warmup_steps", "2", "--logging_steps", "2", "--eval_steps", "6", "--use_cpu"]
    sizes = ["--config.d_model", "32", "--config", "{encoder_layers: 2, decoder_layers: 1}", "--vocab_size", "300"]
    folders = ["--output_dir", str(tmp_path / "run"), "--cache_dir", str(tmp_path / "cache")]
    result = call(RECIPE, *small, *steps, *sizes, *folders)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "seeds: 1 (Python, NumPy, PyTorch)" in result.stdout and "pairs kept" in result.stdout

    results = json.loads((tmp_path / "run" / "results.json").read_text())
    losses = [loss for _, loss in results["loss_curve"]]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert [row["step"] for row in results["evaluations"]] == [6, 12]
    assert results["model"]["config"]["d_model"] == 32 and results["data"]["vocab_size"] == 300
    assert results["validation"]["sentences"] == results["test"]["sentences"] == 10
    assert results["test"]["num_beams"] == 4 and results["test"]["chrf_signature"].startswith("nrefs:1")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "recipe.yaml", "test.translations.txt"} <= names

    typo = call(RECIPE, "--learning_rat", "1e-3")
    assert typo.returncode == 1 and typo.stderr.endswith("no argument --learning_rat; did you mean --learning_rate?\n")
