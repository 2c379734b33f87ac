"""What the directory of a run tells about it: its launches, its log, its options before and after a change."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import write_corpus
from tests.support.runs import compose_run
from xrep.config.yaml_files import load_yaml
from xrep.errors import TrainingError
from xrep.training.run import train
from xrep.training.trainer import Trainer

STEADY: dict[str, Any] = {"criterion": "translation_ranking", "save_every": 2}


def launches(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "launches.jsonl").read_text(encoding="utf-8").splitlines()]


def test_each_launch_is_recorded_with_its_end(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first launch is stopped, the second one fails, the third one ends, and a fourth one has nothing to do."""
    run, step = tmp_path / "run", Trainer._step

    def at_step(number: int, act: Any) -> None:
        def acting(trainer: Trainer, *arguments: Any) -> None:
            if trainer.state.step == number:
                act()
            step(trainer, *arguments)

        monkeypatch.setattr(Trainer, "_step", acting)

    def fail() -> None:
        raise TrainingError("the sky fell")

    at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(compose_run(data_directory, run, max_steps=8, **STEADY))
    at_step(5, fail)
    with pytest.raises(TrainingError):
        train(compose_run(data_directory, run, max_steps=8, **STEADY))
    monkeypatch.undo()
    for _ in range(2):
        train(compose_run(data_directory, run, max_steps=8, **STEADY))
    records = launches(run)
    assert [record["event"] for record in records] == ["start", "end"] * 4
    assert [record["step"] for record in records] == [0, 3, 3, 5, 4, 8, 8, 8]
    ends = [record["how"] for record in records[1::2]]
    assert ends == ["stopped by SIGTERM after step 3", "the sky fell", "finished", "finished"]
    first = records[0]
    assert first["command"].startswith(sys.orig_argv[0]) and first["folder"] == os.getcwd() and first["host"]
    release = torch.__version__.split("+")[0]  # behind the + is the build, which the package does not always name
    assert first["versions"]["torch"].split("+")[0] == release and first["options"]["trainer"]["max_steps"] == 8
    assert first["time"] <= records[-1]["time"]


def test_the_log_has_all_that_was_said(data_directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(compose_run(data_directory, tmp_path / "run", max_steps=4, validate_every=2, **STEADY))
    said = capfd.readouterr().err.splitlines()
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8").splitlines()
    times, lines = ([line.split(" ", 1)[part] for line in log] for part in (0, 1))
    assert lines[0].startswith("launch in ") and lines[-1] == "end of the launch: finished"
    assert len(said) > 6 and lines[1:-1] == said[-len(lines) + 2 :]
    assert times == sorted(times)


def test_the_log_begins_with_the_preprocessing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is printed before the run has a directory."""
    corpus = write_corpus(tmp_path / "corpus", train=60)
    train(compose_run(corpus, tmp_path / "run", vocab_size=100, max_steps=1, **STEADY))
    said = [line for line in capfd.readouterr().out.splitlines() if line]
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8").splitlines()]
    assert said[0].startswith(f"preprocessing {corpus} (once; kept in ") and said[-1].startswith("total ")
    assert lines[: len(said)] == said and lines[len(said)].startswith("launch in ")


def test_a_short_run_has_a_record_and_the_step_of_its_best(data_directory: Path, tmp_path: Path) -> None:
    train(compose_run(data_directory, tmp_path / "run", max_steps=4, log_every=50, **STEADY))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(record["step"], record["kind"]) for record in records] == [(4, "train"), (4, "valid")]
    assert records[0]["loss"] > 0 and records[0]["learning_rate"] > 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best"]["step"] == 4


def test_options_that_were_changed_are_kept(data_directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for steps, size in ((2, 30), (2, 30), (4, 20), (4, 20)):
        train(compose_run(data_directory, run, max_steps=steps, batch_size=size, **STEADY))
    names = sorted(path.name for path in run.glob("config*"))
    assert names == ["config-until-00000002.yaml", "config.yaml"]
    assert [load_yaml(run / name)["task"]["batch_size"] for name in names] == [30, 20]
