"""Learnability through the command line: the demo, as `make demo` runs it, and the README's snippet on its result."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    output = folder / "runs" / "demo"
    result = subprocess.run(
        [sys.executable, "scripts/demo.py", "--output", str(output), "--sentence", "We are reading the letter."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return folder, output, result.stdout


@pytest.mark.system
def test_the_demo_learns(demo):
    _, output, printed = demo
    bleu = float(re.search(r"^BLEU ([\d.]+) \(nrefs:1\|", printed, re.MULTILINE).group(1))
    assert bleu >= 80, printed
    losses = [float(loss) for loss in re.findall(r"'loss': '?([\d.]+)", printed)]
    assert losses[0] > 4 and sum(losses[-3:]) / 3 < 1.0, losses
    assert printed.count("  reference    ") == 5
    # A mean would leave the entropy of every iteration where the first one is.
    entropies = [float(value) for value in re.search(r"by iteration ([\d., ]+)", printed).group(1).split(", ")]
    assert entropies[0] - entropies[-1] > 0.01, entropies
    assert (output / "model.safetensors").exists() and (output / "layer_assignments.png").stat().st_size > 10_000


@pytest.mark.system
def test_the_readme_snippet(demo):
    """The first Python snippet of the README, run where its checkpoint is, prints what the README says."""
    folder, _, _ = demo
    readme = (ROOT / "README.md").read_text()
    code, shown = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", readme, re.DOTALL).groups()
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown
