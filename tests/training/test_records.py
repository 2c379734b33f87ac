"""The records of a run: every step is in one of them, also the last steps, and also if the run is stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.runs import compose_run
from xrep.report.runs import read_runs
from xrep.training.run import train
from xrep.training.trainer import Trainer

STEADY = {"lr_scheduler": "constant", "log_every": 5, "save_every": 4}


def records(run: Path, kind: str = "train") -> dict[int, float]:
    """Return the loss by step; a step with two records fails."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    own = [(record["step"], record["loss"]) for record in found if record["kind"] == kind]
    assert [step for step, _ in own] == sorted({step for step, _ in own})
    return dict(own)


def test_the_last_steps_are_recorded_once(data_directory: Path, tmp_path: Path) -> None:
    run, single = tmp_path / "run", tmp_path / "single"
    train(compose_run(data_directory, single, max_steps=13, **{**STEADY, "log_every": 1}))
    train(compose_run(data_directory, run, max_steps=13, **STEADY))
    each, found = records(single), records(run)
    assert [*found] == [5, 10, 13]
    for before, step in ((0, 5), (5, 10), (10, 13)):
        mean = sum(each[number] for number in range(before + 1, step + 1)) / (step - before)
        assert found[step] == pytest.approx(mean)
    (read,) = read_runs([str(run)])
    assert [step for step, _ in read.curves["train"]["loss"]] == [5, 10, 13]
    train(compose_run(data_directory, run, max_steps=13, **STEADY))  # it is finished
    assert records(run) == found
    train(compose_run(data_directory, run, max_steps=22, **STEADY))
    assert [*records(run)] == [5, 10, 13, 15, 20, 22] and records(run)[13] == found[13]


def test_boards_have_the_last_steps(data_directory: Path, tmp_path: Path) -> None:
    run = compose_run(data_directory, tmp_path / "run", max_steps=7, **STEADY)
    run.values["logging"]["tensorboard"] = True
    train(type(run)(run.values))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [5, 7]


def test_a_run_out_of_patience(data_directory: Path, tmp_path: Path) -> None:
    """It ends by a validation, which is recorded at the same step."""
    given = {**STEADY, "lr": 0, "validate_every": 3, "patience": 1, "validation": "loss", "max_steps": 40}
    state = train(compose_run(data_directory, tmp_path / "run", **given)).state
    steps = [*range(5, state.step + 1, 5)]
    assert [*records(tmp_path / "run")] == [*steps, *([state.step] if state.step % 5 else [])]


def test_a_run_that_is_stopped(data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, step = tmp_path / "run", Trainer._step

    def stop(trainer: Trainer, *arguments: object) -> None:
        if trainer.state.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        step(trainer, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stop)
        assert train(compose_run(data_directory, run, max_steps=12, **STEADY)).signal == "SIGTERM"
    assert [*records(run)] == [5, 7]
    train(compose_run(data_directory, run, max_steps=12, **STEADY))
    assert [*records(run)] == [5, 7, 10, 12]
