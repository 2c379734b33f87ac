"""Courses of training: real stages that are killed and resumed, and stages that are skipped or stopped."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.runs import SMALL, SMALL_MODEL, command, contents, environment
from xrep.config import compose_course, to_yaml
from xrep.errors import UserError
from xrep.models.directory import open_checkpoint
from xrep.training.stages import is_finished, train_course
from xrep_cli.options import parse
from xrep_cli.train import main

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
        "trainer": {"max_steps": 12, "validate_every": 6, "device": "cpu"},
        "checkpoint": {"save_every": 3},
        "logging": {"log_every": 1, "tensorboard": False},
        "stages": [
            {"name": "moco"},
            {"criterion": "translation_ranking", "trainer": {"max_steps": 9}},
            {
                "name": "both",
                "init": "previous/last",
                "parts": [
                    {"name": "queue", "task": task, "criterion": MOCO, "proportion": 2},
                    {"name": "rank", "task": small, "criterion": "translation_ranking", "weight": 0.5},
                ],
                "mixing": "proportion",
                "optimizer": {"lr": 0, "weight_decay": 0},
            },
        ],
    }
    (tmp_path / "course.yaml").write_text(to_yaml(values))
    return ["--config", str(tmp_path / "course.yaml")]


def runs_of(arguments: list[str]) -> list[Any]:
    line = parse(arguments)
    return compose_course(line.layers, line.problems)


def train_records(directory: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if record["kind"] == "train"]


def learnt(directory: Path) -> list[tuple[int, float, float]]:
    return [(r["step"], r["loss"], r["gradient_norm"]) for r in train_records(directory)]


@pytest.mark.slow
def test_a_course_is_trained_stage_by_stage(course, tmp_path, capfd) -> None:
    out = tmp_path / "out"
    given = [*course, "--save-dir", str(out)]
    assert main(given) == 0
    said = capfd.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["2", "best", "both", "last", "moco"]
    assert (os.readlink(out / "best"), os.readlink(out / "last")) == ("both/best", "both/last")
    reached = [open_checkpoint(out / name / "last").step for name in ("moco", "2", "both")]
    assert reached == [12, 9, 12] and open_checkpoint(out / "last").step == 12
    # The second stage starts from the best of the first, the third from the last of the second, which it keeps.
    second, third = (open_checkpoint(out / name / "last") for name in ("2", "both"))
    assert second.config["init"] == f"{out}/moco/best" and third.config["init"] == f"{out}/2/last"
    assert all(torch.equal(tensor, third.tensors()[name]) for name, tensor in second.tensors().items())
    places = [line for line in said.splitlines() if line.startswith("stage ")]
    assert places == [
        f"stage moco (1 of 3, bitext-dual_moco): in {out}/moco",
        f"stage 2 (2 of 3, bitext-translation_ranking): in {out}/2",
        f"stage both (3 of 3, queue+rank): in {out}/both",
    ]
    # Each step draws one of the parts, the first with probability 2/3.
    drawn = ["queue/accuracy" in record for record in train_records(out / "both")]
    assert all(
        ("rank/accuracy" in record) != queue for record, queue in zip(train_records(out / "both"), drawn, strict=True)
    )
    assert 7 <= sum(drawn) <= 9

    before = contents(out)
    capfd.readouterr()
    assert main(given) == 0
    said, after = capfd.readouterr().err, contents(out)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"both/log.txt", "both/launches.jsonl"}
    assert said.count("finished before") == 2 and "this run is finished" in said
    # With a larger budget one stage continues, and the stage before is unchanged.
    assert main([*given, "stages.2.trainer.max_steps=11"]) == 0
    said = capfd.readouterr().err
    assert said.count("finished before") == 1 and "going on from" in said
    assert open_checkpoint(out / "2" / "last").step == 11
    assert contents(out / "moco") == {name[5:]: data for name, data in before.items() if name.startswith("moco/")}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL on this system")
def test_a_course_that_is_killed_goes_on(course, tmp_path) -> None:
    given = [*course, "--max-steps", "6", "stages.2.trainer.max_steps=40", "--validate-every", "0", "optimizer.lr=1e-3"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*given, "--save-dir", str(whole)]) == 0
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(*given, "--save-dir", killed), env=environment(), **quiet)
    while not list((killed / "2").glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert is_finished(runs_of([*given, "--save-dir", str(killed)])[0]) and not (killed / "best").exists()
    assert main([*given, "--save-dir", str(killed)]) == 0
    for stage in ("moco", "2", "both"):
        assert learnt(killed / stage) == learnt(whole / stage)
        for mine in (whole / stage / "last").glob("*.safetensors"):
            assert (killed / stage / "last" / mine.name).read_bytes() == mine.read_bytes()
    assert os.readlink(killed / "best") == "both/best"


@dataclass
class Ended:
    stage: str
    finished: bool


class Recorder:
    """Replaces training: it records the stages and is stopped at one of them."""

    def __init__(self, stop_at: str = "") -> None:
        self.stop_at, self.seen = stop_at, []

    def __call__(self, run: Any) -> Ended:
        self.seen.append(run.stage)
        Path(run.values["checkpoint"]["save_dir"]).mkdir(parents=True, exist_ok=True)
        return Ended(run.stage, run.stage != self.stop_at)


def test_a_stage_that_was_asked_to_stop_ends_the_course(course, tmp_path, capsys) -> None:
    runs = runs_of([*course, "--save-dir", str(tmp_path / "out")])
    stopped = Recorder("2")
    assert train_course(runs, stopped) == Ended("2", False)
    assert stopped.seen == ["moco", "2"] and not (tmp_path / "out" / "best").is_symlink()
    capsys.readouterr()
    other = Recorder()
    assert train_course(runs, other, is_main=False) == Ended("both", True)
    assert other.seen == ["moco", "2", "both"]
    assert not (tmp_path / "out" / "best").is_symlink() and capsys.readouterr().err == ""
    assert train_course(runs, Recorder()) == Ended("both", True)
    assert os.readlink(tmp_path / "out" / "last") == "both/last"


def test_a_run_without_stages_keeps_its_directory(tmp_path) -> None:
    values = {"task": {"name": "bitext"}, "criterion": MOCO, "checkpoint": {"save_dir": str(tmp_path / "run")}}
    (run,) = compose_course([("", values)])
    recorder = Recorder("")
    recorder.stop_at = "none"
    train_course([run], recorder)
    assert recorder.seen == [""] and list(tmp_path.iterdir()) == [tmp_path / "run"]
    assert list((tmp_path / "run").iterdir()) == []


def test_a_directory_of_a_run_is_refused(course, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text("{}")
    runs = runs_of([*course, "--save-dir", str(tmp_path / "out")])
    with pytest.raises(UserError, match="out: holds a run without stages; choose another `save_dir`"):
        train_course(runs, Recorder())
    with pytest.raises(SystemExit) as end:
        train_course(runs, Recorder(), is_main=False)
    assert end.value.code == 2


def test_what_counts_as_finished(course, tmp_path) -> None:
    """The summary must belong to the last checkpoint and to this configuration."""
    run = runs_of([*course, "--save-dir", str(tmp_path)])[0]
    last = tmp_path / "moco" / "last"
    last.mkdir(parents=True)
    good = {"summary.json": '{"steps": 12}', "last/manifest.json": '{"step": 12}', "last/config.yaml": run.to_yaml()}
    bad = {"summary.json": '{"steps": 9}', "last/manifest.json": "[]", "last/config.yaml": run.to_yaml() + "seed: 9\n"}
    for wrong in itertools.chain([None], good):
        for name, text in good.items():
            (tmp_path / "moco" / name).write_text(bad[name] if name == wrong else text)
        assert is_finished(run) is (wrong is None), wrong
        (tmp_path / "moco" / "summary.json").unlink()
        assert not is_finished(run)
