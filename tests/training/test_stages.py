"""Courses of training: real stages that end in the middle and are resumed, and stages that are skipped or stopped."""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import Commands
from tests.support.runs import SMALL, SMALL_MODEL, contents, figures
from xrep.config import runs_of, to_yaml
from xrep.errors import UserError
from xrep.models.directory import open_checkpoint
from xrep.training.stages import is_finished, train_course
from xrep.training.trainer import Trainer
from xrep_cli.train_options import parse

MOCO = {"name": "dual_moco", "queue_size": 100, "momentum": 0.9}


@pytest.fixture
def course(data_directory: Path, tmp_path: Path) -> list[str]:
    """Return a course: momentum contrast, translation ranking, then both as parts with a constant learning rate."""
    task = {"name": "bitext", "data": str(data_directory), "max_length": 32, "batch_size": 30}
    small = {**task, "batch_size": 20}
    values = {
        "task": task,
        "criterion": MOCO,
        "model": {"name": "dual_encoder", **SMALL_MODEL},
        "optimizer": {"name": "adamw", "lr": SMALL["lr"]},
        "trainer": {"max_steps": 6, "validate_every": 3, "device": "cpu"},
        "checkpoint": {"save_every": 3},
        "logging": {"log_every": 1, "tensorboard": False},
        "stages": [
            {"name": "moco"},
            {"criterion": "translation_ranking", "trainer": {"max_steps": 5}},
            {"name": "both", "init": "previous/last", "mixing": "proportion", "parts": [
                {"name": "queue", "task": task, "criterion": MOCO, "proportion": 2},
                {"name": "rank", "task": small, "criterion": "translation_ranking", "weight": 0.5},
            ], "trainer": {"max_steps": 12}, "optimizer": {"lr": 0, "weight_decay": 0}},
        ],
    }  # fmt: skip
    (tmp_path / "course.yaml").write_text(to_yaml(values))
    return ["--config", str(tmp_path / "course.yaml")]


def course_of(arguments: list[str]) -> list[Any]:
    line = parse(arguments)
    return runs_of(line.layers, line.problems)


@pytest.mark.slow
def test_a_course_is_trained_stage_by_stage(course: list[str], tmp_path: Path, cli: Commands) -> None:
    out = tmp_path / "out"
    given = [*course, "--save-dir", str(out)]
    said = cli("train", *given).err
    assert sorted(path.name for path in out.iterdir()) == ["2", "best", "both", "last", "moco"]
    assert (os.readlink(out / "best"), os.readlink(out / "last")) == ("both/best", "both/last")
    assert [open_checkpoint(out / name / "last").step for name in ("moco", "2", "both")] == [6, 5, 12]
    # The second stage starts from the best of the first, the third from the last of the second, which it keeps.
    second, third = (open_checkpoint(out / name / "last") for name in ("2", "both"))
    assert second.config["init"] == f"{out}/moco/best" and third.config["init"] == f"{out}/2/last"
    assert all(torch.equal(tensor, third.tensors()[name]) for name, tensor in second.tensors().items())
    assert [line for line in said.splitlines() if line.startswith("stage ")] == [
        f"stage moco (1 of 3, bitext-dual_moco): in {out}/moco",
        f"stage 2 (2 of 3, bitext-translation_ranking): in {out}/2",
        f"stage both (3 of 3, queue+rank): in {out}/both",
    ]
    # Each step draws one of the parts, the first with probability 2/3.
    records = [record for record in figures(out / "both") if record["kind"] == "train"]
    drawn = ["queue/accuracy" in record for record in records]
    assert ["rank/accuracy" not in record for record in records] == drawn and 7 <= sum(drawn) <= 9

    before = contents(out)
    again = cli("train", *given)
    after = contents(out)
    assert {name for name in after if after[name] != before.get(name)} == {"both/log.txt", "both/launches.jsonl"}
    assert again.err.count("finished before") == 2 and "this run is finished" in again.err
    # With a larger budget one stage continues, and the stage before is unchanged.
    more = cli("train", *given, "stages.2.trainer.max_steps=7")
    assert more.err.count("finished before") == 1 and "going on from" in more.err
    told = "warning: stage both began from earlier weights of the stage before it, which has changed; to train it again"
    assert f"{told}, delete {out}/both\n" in more.err and more.err.count("began from earlier") == 1
    assert "began from earlier" not in again.err
    assert open_checkpoint(out / "2" / "last").step == 7
    assert contents(out / "moco") == {name[5:]: data for name, data in before.items() if name.startswith("moco/")}
    assert "began from earlier" not in cli("train", *course, "--save-dir", str(out), "--log-every", "9").err


class Killed(BaseException):
    pass


@pytest.mark.slow
def test_a_course_that_ends_within_a_stage_goes_on(course, tmp_path, cli, monkeypatch):
    given = [*course, "--validate-every", "0", "optimizer.lr=1e-3", "stages.both.trainer.max_steps=4"]
    whole, killed, step = tmp_path / "whole", tmp_path / "killed", Trainer.run_step
    assert cli("train", *given, "--save-dir", whole).code == 0

    def ending(trainer: Trainer, *arguments: Any) -> None:
        if trainer.run.stage == "2" and trainer.state.step == 4:
            raise Killed
        step(trainer, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "run_step", ending)
        cli("train", *given, "--save-dir", killed)
    assert is_finished(course_of([*given, "--save-dir", str(killed)])[0]) and not (killed / "best").exists()
    assert cli("train", *given, "--save-dir", killed).code == 0
    for stage in ("moco", "2", "both"):
        assert figures(killed / stage) == figures(whole / stage)
        for mine in (whole / stage / "last").glob("*.safetensors"):
            assert (killed / stage / "last" / mine.name).read_bytes() == mine.read_bytes()
    assert os.readlink(killed / "best") == "both/best"


@dataclass
class Ended:
    stage: str
    finished: bool


class Recorder:
    """Replaces training: it records the stages and is stopped at one of them."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.stop_at, self.seen = stop_at, list[str]()

    def __call__(self, run: Any) -> Any:
        self.seen.append(run.stage)
        run.directory.mkdir(parents=True, exist_ok=True)
        return Ended(run.stage, run.stage != self.stop_at)


def test_a_stage_that_was_asked_to_stop_ends_the_course(course: list[str], tmp_path: Path, capsys: Any) -> None:
    runs = course_of([*course, "--save-dir", str(tmp_path / "out")])
    stopped, other = Recorder("2"), Recorder()
    assert train_course(runs, stopped) == Ended("2", False)
    assert stopped.seen == ["moco", "2"] and not (tmp_path / "out" / "best").is_symlink()
    capsys.readouterr()
    assert train_course(runs, other, is_main=False) == Ended("both", True)
    assert other.seen == ["moco", "2", "both"]
    assert not (tmp_path / "out" / "best").is_symlink() and capsys.readouterr().err == ""
    assert train_course(runs, Recorder()) == Ended("both", True)
    assert os.readlink(tmp_path / "out" / "last") == "both/last"


def test_directories_of_courses_and_of_runs_differ(course: list[str], tmp_path: Path) -> None:
    values = {"task": {"name": "bitext"}, "criterion": MOCO, "checkpoint": {"save_dir": str(tmp_path / "run")}}
    recorder = Recorder()
    train_course(runs_of([("", values)]), recorder)
    assert recorder.seen == [""] and list((tmp_path / "run").iterdir()) == []
    (tmp_path / "run" / "config.yaml").write_text("{}")
    runs = course_of([*course, "--save-dir", str(tmp_path / "run")])
    with pytest.raises(UserError, match="run: holds a run without stages; choose another `save_dir`"):
        train_course(runs, Recorder())
    with pytest.raises(SystemExit) as end:
        train_course(runs, Recorder(), is_main=False)
    assert end.value.code == 2


def test_what_counts_as_finished(course: list[str], tmp_path: Path) -> None:
    """The summary must belong to the last checkpoint and to this configuration."""
    run = course_of([*course, "--save-dir", str(tmp_path)])[0]
    (tmp_path / "moco" / "last").mkdir(parents=True)
    good = {"summary.json": '{"steps": 12}', "last/manifest.json": '{"step": 12}', "last/config.yaml": run.to_yaml()}
    bad = {"summary.json": '{"steps": 9}', "last/manifest.json": "[]", "last/config.yaml": run.to_yaml() + "seed: 9\n"}
    for wrong in itertools.chain([None], good):
        for name, text in good.items():
            (tmp_path / "moco" / name).write_text(bad[name] if name == wrong else text)
        assert is_finished(run) is (wrong is None), wrong
    (tmp_path / "moco" / "summary.json").unlink()
    assert not is_finished(run)
