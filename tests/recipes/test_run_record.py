"""What a run's record says, which changes a run takes, and that a run of every recipe goes on exactly."""

import json
import os
import platform
import shutil
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_script, start_script
from markers import exhaustive
from recipe_runs import file_states, run_small, small_arguments, small_recipe
from safetensors.torch import load_file
from transformers import TrainerCallback

from hf_capsule_mt.hub import write_model_card
from hf_capsule_mt.recipes.fields import field_types
from hf_capsule_mt.recipes.running import run as recipe_run
from hf_capsule_mt.recipes.running.record import cpu_name
from hf_capsule_mt.recipes.running.settings import (
    CONTENT,
    EVALUATION,
    LENGTH,
    LOGGING,
    SAVING,
    SCORING,
    effective_settings,
)

TRAIN = "scripts/train.py"
MARIAN = "synthetic/marian"
FAMILIES = [
    *(f"synthetic/{name}" for name in ("marian", "dla_em", "gdr_marian", "gdr_rnmt", "caps_nmt")),
    *map(exhaustive, ("synthetic/heads_em", "synthetic/rnmt", "multi30k/marian", "multi30k/caps_nmt")),
]


class Died(Exception):
    pass


class Dies(TrainerCallback):
    """After a step, as if by `kill -9`: nothing more is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise Died


def run_until(step: int, name: str, folder: Path, *more: str) -> None:
    make_trainer = recipe_run.make_trainer

    def make_mortal(*given: Any) -> Any:
        trainer = make_trainer(*given)
        trainer.add_callback(Dies(step))
        return trainer

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(recipe_run, "make_trainer", make_mortal)
        run_small(name, folder, *more)


def without_clock(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    measured = ("second", "runtime")
    return [{name: value for name, value in row.items() if not any(word in name for word in measured)} for row in rows]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_killed_run_of_every_recipe_ends_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    whole = run_small(name, tmp_path / "whole")
    run_until(5, name, tmp_path / "killed")
    again = run_small(name, tmp_path / "killed")
    assert again["resumed_from"].endswith("checkpoint-4") and again["steps"] == 6
    kind = "exponential moving average" if name.startswith("multi30k/") else "last step"
    assert again["weights"] == whole["weights"] == {"kind": kind, "steps": [6]}
    assert again["loss_curve"] == whole["loss_curve"] and len(whole["loss_curve"]) == 6
    assert without_clock(again["evaluations"]) == without_clock(whole["evaluations"])
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert [(part["from_step"], part["to_step"]) for part in again["segments"]] == [(0, 4), (4, 6)]
    assert [part["changed"] for part in again["segments"]] == [{}, {}]
    assert again["train_seconds"] > 0 and again["target_tokens_per_second"] > 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, trained by the command line. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    done = run_script(TRAIN, *small_arguments(MARIAN, folder))
    assert done.returncode == 0, done.stderr
    assert "test, greedy search\nBLEU" in done.stdout
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_says_so_and_writes_nothing(finished: Path) -> None:
    before = file_states(finished)
    done = run_script(TRAIN, *small_arguments(MARIAN, finished))
    assert done.returncode == 0 and file_states(finished) == before
    assert f"{finished}: the run is finished, 6 steps" in done.stdout
    again = run_script(TRAIN, *small_arguments(MARIAN, finished), "--eval_steps=3", "--logging_first_step")
    assert again.returncode == 0 and file_states(finished) == before
    assert "Changed, but without effect on a finished run: eval_steps, logging_first_step." in again.stdout


def test_a_run_draws_its_learning_curves_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(MARIAN, tmp_path / "run", pictures=True)
    assert (tmp_path / "run" / "loss_curve.png").is_file() and (tmp_path / "run" / "bleu_curve.png").is_file()
    assert "learning curves" not in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run_small(MARIAN, tmp_path / "without", pictures=True)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "learning curves" in line]
    assert "plots need matplotlib: pip install 'hf_capsule_mt[plot]'" in line
    assert (tmp_path / "without" / "results.json").is_file() and not (tmp_path / "without" / "loss_curve.png").exists()


def test_the_results_say_what_replaced_routing(tmp_path: Path) -> None:
    short = ("--max_steps=2", "--eval_strategy=no")
    results = run_small("synthetic/dla_em", tmp_path / "uniform", "--routing_ablation=uniform", *short)
    assert results["routing_ablation"] == {"name": "uniform", "seed": 1}
    assert json.loads((tmp_path / "uniform" / "results.json").read_text())["routing_ablation"]["name"] == "uniform"
    assert run_small(MARIAN, tmp_path / "plain", *short)["routing_ablation"] is None


def test_a_card_that_was_edited_stays_until_there_are_other_results(copied: Path) -> None:
    card = copied / "README.md"
    card.write_text("Mine.\n")
    os.utime(card, (0, 0))  # as a copy may have it
    again = run_script(TRAIN, *small_arguments(MARIAN, copied))
    assert again.returncode == 0 and "are written" not in again.stdout
    assert card.read_text() == "Mine.\n"
    scored = run_script(TRAIN, *small_arguments(MARIAN, copied), "--num_beams=2")
    assert scored.returncode == 0 and "test, 2 beams\nBLEU" in scored.stdout
    assert f"card are written; capsule-mt translate --model {copied} uses it" in scored.stdout
    assert "synthetic" in card.read_text()


def test_another_recipe_is_one_error_that_names_every_change(finished: Path) -> None:
    before = file_states(finished)
    changes = ["--seed=9", "--learning_rate=7e-4", "--label_smoothing_factor=0.3", "--config.dropout=0.2"]
    done = run_script(TRAIN, *small_arguments(MARIAN, finished), *changes, "--cleaning.max_words=50", "--max_steps=8")
    assert done.returncode == 1 and file_states(finished) == before
    assert done.stderr == (
        f"error: {finished} holds a run of another recipe: "
        "cleaning.max_words was None, now 50; "
        "config.dropout was 0.1, now 0.2; "
        "label_smoothing_factor was 0.0, now 0.3; "
        "learning_rate was 0.002, now 0.0007; "
        "seed was 1, now 9. "
        f"Choose another output_dir, such as {finished}-2, or continue with the old settings\n"
    )


def test_a_default_that_is_spelled_out_is_no_change(finished: Path) -> None:
    spelled_out = ["--weight_decay=0.0", "--max_grad_norm=1.0", "--config.attention_dropout=0.0", "--corpus_seed=0"]
    given = small_arguments(MARIAN, finished)
    assert "the run is finished" in run_script(TRAIN, *given, *spelled_out, "--num_train_epochs=9").stdout
    done = run_script(TRAIN, *given, "--weight_decay=0.01")
    assert "weight_decay was 0.0, now 0.01" in done.stderr


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ([], ["--max_steps=5"], "max_steps was 6, now 5"),
        ([], ["--max_steps=-1"], "max_steps was 6, now -1"),
        (["--average_checkpoints=2"], ["--save_steps=3"], "save_steps was 2, now 3"),
        (["--load_best_model_at_end=true", "--eval_steps=2"], ["--eval_delay=3"], "eval_delay was 0, now 3"),
        (["--lr_scheduler_type=reduce_lr_on_plateau"], ["--eval_steps=2"], "eval_steps was 4, now 2"),
    ],
)
def test_what_decides_the_weights_may_not_change(
    first: list[str], then: list[str], message: str, tmp_path: Path
) -> None:
    run_until(3, MARIAN, tmp_path / "run", *first)
    before = file_states(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"(?s){message}.*such as .*run-2") as raised:
        run_small(MARIAN, tmp_path / "run", *first, *then)
    assert str(raised.value).count(" was ") == 1 and file_states(tmp_path / "run") == before
    assert ("can change, and only grow" in str(raised.value)) == ("max_steps" in message)


def test_logging_saving_and_evaluating_may_change_and_the_segments_say_so(tmp_path: Path) -> None:
    whole = run_small(MARIAN, tmp_path / "whole")
    run_until(3, MARIAN, tmp_path / "run")
    more = ["--logging_steps=3", "--save_steps=3", "--eval_steps=3", "--dataloader_num_workers=1", "--num_beams=2"]
    changed = run_small(MARIAN, tmp_path / "run", *more)
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "run")]
    assert weights[0] == weights[1] and changed["steps"] == whole["steps"]
    assert changed["segments"][1]["changed"] == {
        "eval_steps": [4, 3],
        "logging_steps": [1, 3],
        "num_beams": [1, 2],
        "save_steps": [2, 3],
    }
    assert (
        (tmp_path / "run" / "recipe.yaml").read_text().startswith("# Not all steps were trained with these settings")
    )


def test_a_longer_run_says_what_its_schedule_was(copied: Path) -> None:
    done = run_script(TRAIN, *small_arguments(MARIAN, copied), "--max_steps=8")
    assert done.returncode == 0, done.stderr
    assert f"continuing from {copied / 'checkpoint-6'}, after step 6\n  max_steps was 6, now 8\n" in done.stdout
    assert "learning rate from here on: linear, warm-up of 2 steps, to step 8" in done.stdout
    results = json.loads((copied / "results.json").read_text())
    actual = [(part["from_step"], part["to_step"], part["learning_rate"]) for part in results["segments"]]
    schedules = [f"linear, warm-up of 2 steps, to step {steps}" for steps in (6, 8)]
    assert actual == [(0, 6, schedules[0]), (6, 8, schedules[1])]
    assert results["segments"][1]["changed"] == {"max_steps": [6, 8]}
    for part in results["segments"]:
        assert {"versions", "processes", "date"} <= part.keys() and part["device"] == f"CPU, {cpu_name()}"
    card = (copied / "README.md").read_text()
    assert "| 0 to 6 |" in card and "| 6 to 8 | `max_steps` 6, now 8 |" in card and "to step 8" in card
    assert (
        "the run is finished, 8 steps" in run_script(TRAIN, *small_arguments(MARIAN, copied), "--max_steps=8").stdout
    )


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("model\t\t: 17\nmodel name\t: AMD EPYC\ncpu family\t: 25\n\nmodel\t\t: 1\n", "AMD EPYC, family 25, model 17"),
        ("processor\t: 0\nBogoMIPS\t: 243.75\n", platform.machine()),  # Arm
        (None, platform.processor() or platform.machine()),  # another system
    ],
)
def test_a_record_tells_models_of_cpus_apart(tmp_path: Path, cpuinfo: str | None, name: str) -> None:
    """Two of them may end with other weights."""
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert cpu_name(tmp_path / "cpuinfo") == name


def test_a_recipe_ends_with_the_mean_that_it_asks_for_and_trains_on_without_it(tmp_path: Path) -> None:
    mean = ["--average_checkpoints=2", "--lr_scheduler_type=constant"]
    whole = run_small(MARIAN, tmp_path / "whole", *mean, "--max_steps=8")
    run_until(5, MARIAN, tmp_path / "run", *mean)
    short = run_small(MARIAN, tmp_path / "run", *mean)
    assert short["weights"] == {"kind": "mean of checkpoints", "steps": [4, 6]}
    last = [load_file(tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors") for step in (4, 6)]
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in saved.items():
        assert torch.equal(value, ((last[0][name].double() + last[1][name].double()) / 2).float()), name
    assert any(not torch.equal(value, last[1][name]) for name, value in saved.items())
    write_model_card(tmp_path / "run", license="mit")
    assert "mean of checkpoints, after steps 4, 6." in (tmp_path / "run" / "README.md").read_text()

    longer = run_small(MARIAN, tmp_path / "run", *mean, "--max_steps=8")
    assert longer["weights"] == whole["weights"] and longer["loss_curve"] == whole["loss_curve"]
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "run")]
    assert weights[0] == weights[1] and longer["test"]["loss"] == whole["test"]["loss"]
    scored = run_small(MARIAN, tmp_path / "run", *mean, "--max_steps=8", "--num_beams=2")
    assert scored["weights"] == whole["weights"]


def test_more_epochs_make_a_run_longer(tmp_path: Path) -> None:
    by_epochs = ["--max_steps=-1", "--num_train_epochs=1", "--save_strategy=epoch"]
    run_small(MARIAN, tmp_path / "run", *by_epochs)
    longer = run_small(MARIAN, tmp_path / "run", *by_epochs, "--num_train_epochs=2")
    assert longer["steps"] == 6 and longer["segments"][1]["changed"] == {"num_train_epochs": [1, 2]}
    with pytest.raises(ValueError, match="num_train_epochs was 2.0, now 1.0"):
        run_small(MARIAN, tmp_path / "run", *by_epochs)


def test_a_finished_run_is_scored_anew_and_trains_nothing(copied: Path) -> None:
    before = json.loads((copied / "results.json").read_text())
    weights = (copied / "model.safetensors").read_bytes()
    scored = run_small(MARIAN, copied, "--num_beams=3", "--test=synthetic:5:6")
    assert (scored["test"]["num_beams"], scored["test"]["sentences"]) == (3, 5)
    assert scored["test"]["corpus"] == "synthetic:5:6" and before["test"]["corpus"] == "synthetic:4:6"
    assert scored["segments"] == before["segments"] and scored["loss_curve"] == before["loss_curve"]
    assert (copied / "model.safetensors").read_bytes() == weights
    states = file_states(copied)
    assert run_small(MARIAN, copied, "--num_beams=3", "--test=synthetic:5:6") == json.loads(
        (copied / "results.json").read_text()
    )
    assert file_states(copied) == states, "scored once"
    with pytest.raises(
        ValueError, match="(?s)finished run, and these settings only affect training: eval_steps was 4, now 3"
    ):
        run_small(MARIAN, copied, "--eval_steps=3", "--num_beams=2")


def test_a_run_without_a_record_is_not_taken_up(copied: Path) -> None:
    record = (copied / "run.json").read_text()
    (copied / "run.json").write_text(record[:50])
    with pytest.raises(ValueError, match=r"run.json cannot be read .*restore it"):
        run_small(MARIAN, copied, "--max_steps=8")
    (copied / "run.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-6 and no run.json, so its settings are unknown"):
        run_small(MARIAN, copied, "--max_steps=8")


def test_a_run_that_left_no_checkpoint_may_begin_anew_until_it_is_finished(tmp_path: Path) -> None:
    unsaved = ["--save_strategy=no"]
    run_until(3, MARIAN, tmp_path / "run", *unsaved)
    done = run_small(MARIAN, tmp_path / "run", *unsaved, "--seed=5")
    assert done["segments"][0]["from_step"] == 0 and len(done["segments"]) == 1
    with pytest.raises(ValueError, match="seed was 5, now 1"):
        run_small(MARIAN, tmp_path / "run", *unsaved)
    with pytest.raises(ValueError, match="finished run of 6 steps and no checkpoint to continue from"):
        run_small(MARIAN, tmp_path / "run", *unsaved, "--seed=5", "--max_steps=8")


def test_going_back_to_an_earlier_checkpoint_drops_what_came_after_it(copied: Path) -> None:
    back = run_small(MARIAN, copied, f"--resume_from_checkpoint={copied / 'checkpoint-4'}", "--max_steps=7")
    assert [(part["from_step"], part["to_step"]) for part in back["segments"]] == [(0, 4), (4, 7)]
    saved = (copied / "recipe.yaml").read_text()
    assert "resume_from_checkpoint" not in saved, "it makes the run again from the beginning"


def test_every_key_that_may_change_is_a_key() -> None:
    keys = {*LOGGING, *SAVING, *EVALUATION, *SCORING, *LENGTH} - {*CONTENT}
    assert keys <= field_types().keys()


def write_corpora(folder: Path, **shifts: int) -> list[str]:
    """Files of the synthetic pair, a `shift` of sentences into it, and the arguments that name them."""
    from hf_capsule_mt.data import SyntheticPair

    folder.mkdir(exist_ok=True)
    for split, size in (("train", 60), ("validation", 6), ("test", 4)):
        corpus = SyntheticPair(0, "valid" if split == "validation" else split, max_words=6)
        pairs = [corpus.pair(index + shifts.get(split, 0)) for index in range(size)]
        (folder / f"{split}.en").write_text("".join(f"{pair.source}\n" for pair in pairs))
        (folder / f"{split}.de").write_text("".join(f"{pair.target}\n" for pair in pairs))
    return [f"--{split}={folder / split}" for split in ("train", "validation", "test")]


def test_a_run_is_not_taken_up_on_other_sentences(tmp_path: Path) -> None:
    files = write_corpora(tmp_path / "data")
    run_until(3, MARIAN, tmp_path / "run", *files)
    write_corpora(tmp_path / "data", train=1)
    with pytest.raises(ValueError, match=r"(?s)train content was '[0-9a-f]{16}', now '[0-9a-f]{16}'\. .*run-2"):
        run_small(MARIAN, tmp_path / "run", *files)
    write_corpora(tmp_path / "data", validation=1)
    results = run_small(MARIAN, tmp_path / "run", *files)
    assert [*results["segments"][1]["changed"]] == ["validation content"]
    moved = write_corpora(tmp_path / "moved", validation=1)
    (tmp_path / "data" / "train.en").unlink()
    states = file_states(tmp_path / "run")
    assert run_small(MARIAN, tmp_path / "run", *files)["test"] == results["test"], "nothing to do, so nothing is read"
    assert file_states(tmp_path / "run") == states
    write_corpora(tmp_path / "data", validation=1, test=1)
    scored = run_small(MARIAN, tmp_path / "run", *files)
    assert scored["test"]["loss"] != results["test"]["loss"] and scored["loss_curve"] == results["loss_curve"]
    with pytest.raises(ValueError, match="train was '.*data.train', now '.*moved.train'"):
        run_small(MARIAN, tmp_path / "run", *moved)


def test_a_warm_start_is_not_taken_up_from_other_weights(copied: Path, tmp_path: Path) -> None:
    warm = ["--init_from", str(copied)]
    run_until(3, MARIAN, tmp_path / "warm", *warm)
    shutil.copy(copied / "checkpoint-4" / "model.safetensors", copied)
    with pytest.raises(ValueError, match="init_from content was '[0-9a-f]{16}', now '[0-9a-f]{16}'"):
        run_small(MARIAN, tmp_path / "warm", *warm)
    tokenizer = copied / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:500])
    with pytest.raises(ValueError, match=f"{copied}: its tokenizer cannot be loaded"):
        run_small(MARIAN, tmp_path / "cold", *warm)


def test_other_processes_are_another_run(tmp_path: Path) -> None:
    """Each has a batch of its own at every step."""
    run_until(3, MARIAN, tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(file.read_text().replace('"processes": 1', '"processes": 2'))
    with pytest.raises(ValueError, match="processes was 2, now 1"):
        run_small(MARIAN, tmp_path / "run")


def test_settings_hold_no_secret(tmp_path: Path) -> None:
    settings = effective_settings(small_recipe(MARIAN, tmp_path, "--hub_token=hf_secret"))
    assert "hub_token" not in settings and "hf_secret" not in json.dumps(settings)
    assert settings["config.dropout"] == 0.1 and settings["config.attention_dropout"] == 0.0


@pytest.mark.exhaustive
def test_killed_by_the_command_line(tmp_path: Path) -> None:
    """SIGKILL after a checkpoint, wherever training is then."""
    slow = ["--max_steps=40", "--save_steps=10", "--eval_strategy=no"]
    whole, killed = (small_arguments(MARIAN, tmp_path / name) + slow for name in ("whole", "killed"))
    assert run_script(TRAIN, *whole).returncode == 0
    program = start_script(TRAIN, *killed, log=tmp_path / "log")
    wait_for(tmp_path / "killed" / "checkpoint-10", program)
    program.kill()
    program.join()
    assert program.exitcode == -signal.SIGKILL
    again = run_script(TRAIN, *killed)
    assert again.returncode == 0 and f"continuing from {tmp_path / 'killed' / 'checkpoint-'}" in again.stdout
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "killed")]
    assert weights[0] == weights[1]


def wait_for(path: Path, program: BaseProcess) -> None:
    while not path.exists():
        assert program.is_alive(), "it ended before"
        time.sleep(0.02)


def test_a_run_goes_on_from_a_checkpoint_of_another_folder(tmp_path: Path) -> None:
    whole = run_small(MARIAN, tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    second = run_small(MARIAN, tmp_path / "second", f"--resume_from_checkpoint={checkpoint}")
    assert second["steps"] == 6 and second["resumed_from"] == str(checkpoint)
    names = "model.safetensors", "tokenizer.json"
    for name in names:
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert second["test"]["bleu"] == whole["test"]["bleu"]
    assert run_small(MARIAN, tmp_path / "second")["steps"] == 6, "it is finished"


def test_an_interrupted_run_from_another_folder_goes_on_without_the_old_one(tmp_path: Path) -> None:
    run_small(MARIAN, tmp_path / "first", "--max_steps=2")
    checkpoint = tmp_path / "first" / "checkpoint-2"
    run_until(5, MARIAN, tmp_path / "second", f"--resume_from_checkpoint={checkpoint}")
    shutil.rmtree(tmp_path / "first")
    again = run_small(MARIAN, tmp_path / "second")
    assert again["resumed_from"].endswith("second/checkpoint-4") and again["steps"] == 6


ENDLESS = ["--train=synthetic:1000:6", "--max_steps=100000", "--save_steps=10", "--eval_strategy=no"]


@pytest.mark.parametrize("start_method", ["fork", exhaustive("spawn")])
def test_ctrl_c_saves(tmp_path: Path, start_method: str) -> None:
    """A terminal sends it to the process that reads pairs too."""
    log, folder = tmp_path / "log", tmp_path / "run"
    arguments = [*small_arguments(MARIAN, folder), *ENDLESS, "--dataloader_num_workers=1"]
    if start_method == "spawn" and "dataloader_multiprocessing_context" not in field_types():
        pytest.skip("this release of Transformers cannot start them so")
    arguments += ["--dataloader_multiprocessing_context=spawn"] if start_method == "spawn" else []
    program = start_script(TRAIN, *arguments, log=log)
    wait_for(folder / "checkpoint-10", program)
    os.killpg(int(program.pid or 0), signal.SIGINT)
    program.join(60)
    said = log.read_text()
    assert program.exitcode == 130, said
    assert said.count("SIGINT: training ends with a checkpoint after this step") == 1
    last = max(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))
    assert f"interrupted after step {last}, which is saved; the same command continues from there" in said
    assert "Traceback" not in said and "KeyboardInterrupt" not in said


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    program = start_script(TRAIN, *small_arguments(MARIAN, folder), *ENDLESS, log=log)
    wait_for(folder / "checkpoint-10", program)
    os.kill(int(program.pid or 0), signal.SIGINT)
    while program.is_alive() and "SIGINT: training ends" not in log.read_text():
        time.sleep(0.001)
    os.kill(int(program.pid or 0), signal.SIGINT)
    program.join(60)
    assert program.exitcode == 130 and "Traceback" not in log.read_text()
