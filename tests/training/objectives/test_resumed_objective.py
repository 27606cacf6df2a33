"""A run that is resumed with other settings or processes: what goes on, what begins anew, and what is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run_processes
from objective_run import WordShare, run

from hf_capsule_mt.training import CapsuleSeq2SeqTrainingArguments
from hf_capsule_mt.training.objectives.recorded_settings import has_other_reward, objective_settings

PROGRAM = Path(__file__).with_name("objective_run.py")
SHORT: dict[str, Any] = {"max_steps": 2, "save_steps": 2, "eval_strategy": "no", "reward_baseline": "running_mean"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    run(folder, **SHORT).train()
    return str(folder / "checkpoint-2")


class OtherReward(WordShare):
    name = "other"

    def load(self, state: dict[str, Any]) -> None:
        raise AssertionError("this state is of another reward")


def resumed(folder: Path, checkpoint: str, caplog: Any, **changed: Any) -> tuple[Any, list[str]]:
    trainer = run(folder, **SHORT | {"save_strategy": "no"} | changed)
    caplog.clear()
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, [one.getMessage() for one in caplog.records if "another objective" in one.getMessage()]


def shared_state(checkpoint: str) -> dict[str, Any]:
    return json.loads((Path(checkpoint) / "running_0.json").read_text())["rewards"]


def test_nothing_is_said_of_the_same_settings(checkpoint: str, tmp_path: Path, caplog: Any):
    trainer, said = resumed(tmp_path, checkpoint, caplog, equal_reward_steps=7)
    assert said == [] and trainer.objective.statistics.mean == shared_state(checkpoint)["mean"] != 0.0


def test_other_settings_of_the_objective_are_a_warning(checkpoint: str, tmp_path: Path, caplog: Any):
    settings = {"objective": "minimum_risk", "samples_per_sentence": 2}
    trainer, (said,) = resumed(tmp_path, checkpoint, caplog, **settings)
    assert "objective was 'policy_gradient' and is 'minimum_risk', samples_per_sentence was 3 and is 2" in said
    assert "anew" not in said and trainer.objective.statistics.mean == shared_state(checkpoint)["mean"]


def test_another_reward_begins_anew(checkpoint: str, tmp_path: Path, caplog: Any):
    trainer, (said,) = resumed(tmp_path, checkpoint, caplog, reward=OtherReward())
    assert "reward was 'word_share' and is 'other'" in said and "running mean of rewards begin anew" in said
    assert trainer.objective.statistics.running_mean() is None


def test_likelihood_after_an_objective_is_a_warning(checkpoint: str, tmp_path: Path, caplog: Any):
    _, (said,) = resumed(tmp_path, checkpoint, caplog, objective="likelihood", reward=None)
    assert "objective was 'policy_gradient' and is 'likelihood'" in said


def test_settings_of_a_named_reward_are_recorded(tmp_path: Path):
    """All that rewards depend on, whether they are spelled out or left at their defaults."""

    def settings(**values: Any) -> dict[str, Any]:
        arguments: Any = {"objective": "minimum_risk", "report_to": "none"} | values
        return objective_settings(CapsuleSeq2SeqTrainingArguments(str(tmp_path), **arguments), None)

    plain = settings()
    assert plain["reward"] == "bleu" and plain["reward_settings.bleu_order"] == 4
    assert settings(reward_settings={"workers": 3, "bleu_order": 4}) == plain
    assert has_other_reward(plain, settings(reward_settings={"bleu_order": 2}))
    assert has_other_reward(plain, settings(reward="chrf")) and not has_other_reward(
        plain, settings(risk_sharpness=0.1)
    )
    assert settings(reward_settings={"bleu_order": 2}) != plain != settings(risk_sharpness=0.5)
    assert settings(objective="likelihood", reward="chrf") == {"objective": "likelihood"}


def test_the_running_mean_survives_another_number_of_processes(checkpoint: str, tmp_path: Path):
    """Two processes go on from the checkpoint of one."""
    options = SHORT | {"output_dir": str(tmp_path), "max_tokens_per_batch": None, "per_device_train_batch_size": 4}
    options |= {"save_strategy": "no", "use_cpu": True, "resume": checkpoint, "max_steps": 3}
    for done in run_processes(PROGRAM, json.dumps(options)):
        assert done.returncode == 0, done.stderr
    before = shared_state(checkpoint)
    for process in (0, 1):
        report = json.loads((tmp_path / f"report_{process}.json").read_text())
        assert report["mean_weight"] == pytest.approx(0.99 * before["mean_weight"] + 0.01)
