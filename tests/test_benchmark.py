"""The benchmark runs and reports what it says it does; how fast anything is, is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("command", ["train", "decode"])
def test_runs_and_writes_json(command, tmp_path):
    target = tmp_path / "out.json"
    arguments = [
        "--models",
        "em,heads-em-all,gdr-bow-bca,rnmt-gdr",
        "--size",
        "tiny",
        "--rounds",
        "1",
        "--warmup",
        "1",
        "--batch",
        "2",
    ]
    arguments += ["--source-length", "5", "--target-length", "4", "--threads", "1", "--json", str(target)]
    script = [sys.executable, "scripts/benchmark.py", command]
    result = subprocess.run([*script, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    report = json.loads(target.read_text())
    assert list(report["rows"]) == ["marian", "em", "heads-em-all", "gdr-bow-bca", "rnmt-gdr"]
    assert report["rows"]["marian"]["time_ratio"] == 1.0
    for row in report["rows"].values():
        assert row["median_s"] > 0 and row["peak_bytes"] > 4 * row["parameters"]
    assert report["versions"]["torch"] and report["settings"]["seed"] == 1
    assert "time ratio" in result.stdout


def test_unknown_model_is_named(tmp_path):
    script = [sys.executable, "scripts/benchmark.py", "train", "--models", "no-such"]
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2 and "no-such: no such model; choose from marian" in result.stderr
