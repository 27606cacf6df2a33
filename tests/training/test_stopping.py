"""Runs that are told to stop, or killed in an evaluation: what they leave is made up for when they go on."""

import os
import pickle
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from markers import exhaustive
from training_run import Signal, checkpoints, ends_like, history, run, train_until_interrupted
from transformers import TrainerCallback, TrainerControl, TrainerState

from hf_capsule_mt.training import TrainingInterrupted
from hf_capsule_mt.training.callbacks.stop_on_signal import StopOnSignal
from hf_capsule_mt.training.checkpoints.files import last_checkpoint, read_log_history


def evaluations(trainer: Any) -> list[int]:
    return [row["step"] for row in history(trainer) if "eval_loss" in row]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that nothing happens to: epochs of 6 steps, an evaluation and a checkpoint every fourth step."""
    trainer = run(tmp_path_factory.mktemp("whole"))
    trainer.train()
    assert evaluations(trainer) == checkpoints(trainer.args.output_dir) == [4, 8, 12, 14]
    return trainer


@pytest.mark.parametrize(
    ("sent", "ends", "number"),
    [
        (6, 7, signal.SIGINT),  # where it does nothing else
        (7, 8, signal.SIGTERM),  # where it saves and evaluates anyway
        (4, 4, signal.SIGTERM),  # while it evaluates
        exhaustive(5, 6, signal.SIGTERM),  # after the last step of an epoch
        *(exhaustive(*steps, signal.SIGINT) for steps in ((7, 8), (4, 4), (5, 6))),
        exhaustive(6, 7, signal.SIGTERM),
    ],
)
def test_a_signal_saves_and_stops(whole: Any, tmp_path: Path, sent: int, ends: int, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    trainer = run(tmp_path)
    trainer.add_callback(Signal(sent, number))
    with pytest.raises(TrainingInterrupted, match=f"^{number.name} ended training after step {ends}, ") as raised:
        trainer.train()
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):  # as a pool of processes returns it
        assert (error.signal, error.exit_code) == (number, 128 + number)
        assert error.step == trainer.state.global_step == ends
    assert signal.getsignal(number) is before
    assert last_checkpoint(tmp_path) == tmp_path / f"checkpoint-{ends}"
    assert evaluations(trainer) == [4][: ends // 5], "what was due at the end is left for later"
    ends_like(whole, tmp_path)
    assert checkpoints(tmp_path) == [4, 8, 12, 14], "the one for SIGTERM alone is gone"
    for step in (4, 8):
        actual, expected = (
            [row["step"] for row in read_log_history(Path(folder) / f"checkpoint-{step}")]
            for folder in (tmp_path, whole.args.output_dir)
        )
        assert actual == expected, "what was due has the evaluation"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_only_a_second_ctrl_c_does_not_wait_for_the_step(tmp_path: Path, second: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer = run(tmp_path)
    trainer.add_callback(Signal(6, signal.SIGINT))
    trainer.add_callback(Signal(6, second))
    if second == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):  # nothing was saved
            trainer.train()
    else:
        interruption = train_until_interrupted(trainer)
        assert interruption is not None and interruption.signal == signal.SIGINT
    assert checkpoints(tmp_path) == ([4] if second == signal.SIGINT else [4, 7])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_checkpoint_that_the_user_names_is_kept(tmp_path: Path) -> None:
    trainer = run(tmp_path)
    trainer.add_callback(Signal(6, signal.SIGTERM))
    assert train_until_interrupted(trainer)
    run(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert checkpoints(tmp_path) == [4, 7, 8, 12, 14]


class SignalWhileEvaluating(TrainerCallback):
    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.exhaustive
def test_an_evaluation_may_be_left_again_and_again(whole: Any, tmp_path: Path) -> None:
    for callback in (Signal(14, signal.SIGTERM), SignalWhileEvaluating(), SignalWhileEvaluating()):
        trainer = run(tmp_path)
        trainer.add_callback(callback)
        assert train_until_interrupted(trainer, bool(checkpoints(tmp_path))) and evaluations(trainer) == [4, 8, 12]
    ends_like(whole, tmp_path)


EPOCHS: list[dict[str, Any]] = [
    {"save_steps": 3, "max_steps": 14},  # ends within an epoch
    {"save_strategy": "epoch", "max_steps": 12},
]


@pytest.fixture(scope="module", params=EPOCHS, ids=["steps", "epochs"])
def whole_epochs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that logs and evaluates at the end of epochs and that nothing happens to, and its arguments."""
    arguments = {"eval_strategy": "epoch", "logging_strategy": "epoch", **request.param}
    trainer = run(tmp_path_factory.mktemp("epochs"), **arguments)
    trainer.train()
    assert evaluations(trainer) == [6, 12, 14][: arguments["max_steps"] - 10]
    return trainer, arguments


class Dies(TrainerCallback):
    """In the middle of the evaluation after a step, as if by `kill -9`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise Died


class Died(Exception):
    pass


@pytest.mark.parametrize("whole_epochs", EPOCHS[:1], ids=["steps"], indirect=True)
@pytest.mark.parametrize("step", [6, exhaustive(14)])
def test_what_a_kill_cuts_off_at_the_end_of_an_epoch_is_made_up(whole_epochs: Any, tmp_path: Path, step: int) -> None:
    whole, arguments = whole_epochs
    trainer = run(tmp_path, **arguments)
    trainer.add_callback(Dies(step))
    with pytest.raises(Died):
        trainer.train()
    assert last_checkpoint(tmp_path) == tmp_path / f"checkpoint-{step}"
    ends_like(whole, tmp_path, **arguments)


# After the last epoch nothing but the end of training makes up for what was left.
@pytest.mark.parametrize("at_last", [exhaustive(False), True])
def test_sigterm_at_the_end_of_an_epoch(whole_epochs: Any, tmp_path: Path, at_last: bool) -> None:
    """Before an evaluation, or in it."""
    whole, arguments = whole_epochs
    step = arguments["max_steps"] if at_last else 6
    trainer = run(tmp_path, **arguments)
    trainer.add_callback(Signal(step if at_last else step - 1, signal.SIGTERM))
    assert train_until_interrupted(trainer) and last_checkpoint(tmp_path) == tmp_path / f"checkpoint-{step}"
    assert evaluations(trainer) == [one for one in evaluations(whole) if one < step]
    ends_like(whole, tmp_path, **arguments)
    assert checkpoints(tmp_path) == checkpoints(whole.args.output_dir)


def test_processes_ask_each_other_every_few_steps_only() -> None:
    """Each asking waits for the GPU. Any of the processes may have the signal."""
    asked: list[torch.Tensor] = []

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor)
        return torch.cat([tensor, torch.ones_like(tensor)])  # the other process has it

    accelerator: Any = SimpleNamespace(num_processes=2, device=torch.device("cpu"), gather=gather)
    stopper = StopOnSignal(accelerator)
    stops = []
    for step in range(1, 11):
        control = TrainerControl()
        stopper.on_step_end(None, TrainerState(global_step=step, max_steps=20), control)
        stops.append(control.should_training_stop)
    assert stops == [False] * 4 + [True] + [False] * 4 + [True] and len(asked) == 2


@pytest.mark.parametrize("saves_anyway", [True, False])
def test_an_evaluation_that_was_left_is_not_asked_for_again(saves_anyway: bool) -> None:
    accelerator: Any = SimpleNamespace(num_processes=1)
    stopper, control = StopOnSignal(accelerator), TrainerControl(should_evaluate=True, should_save=saves_anyway)
    stopper.stop_after_interrupted_evaluation(control)
    assert control.should_training_stop and not control.should_evaluate
    assert stopper.only_signal_asked_to_save != saves_anyway
