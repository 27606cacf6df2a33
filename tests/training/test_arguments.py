"""The trainer's own arguments: what they are if nobody sets them, and what the environment sets."""

from pathlib import Path
from typing import Any

import pytest

from hf_capsule_mt.training import CapsuleSeq2SeqTrainingArguments


def test_nothing_is_on_by_default(tmp_path: Path) -> None:
    """So that a script for the stock arguments trains the same model."""
    args = CapsuleSeq2SeqTrainingArguments(output_dir=str(tmp_path))
    off: dict[str, Any] = {
        "max_tokens_per_batch": None,
        "auxiliary_warmup_steps": 0,
        "early_stopping_patience": None,
        "ema_decay": None,
        "average_checkpoints": None,
        "skip_logits": False,
    }
    assert {name: getattr(args, name) for name in off} == off


@pytest.mark.parametrize(("flag", "uses_cpu"), [("true", True), ("false", False), (None, False)])
def test_accelerate_launch_may_ask_for_the_cpu(
    flag: str | None, uses_cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    if flag is not None:
        monkeypatch.setenv("ACCELERATE_USE_CPU", flag)
    assert CapsuleSeq2SeqTrainingArguments(output_dir=str(tmp_path)).use_cpu == uses_cpu
