"""xrep-train in hostile places: save directories, files that resuming reads, environments, and extreme options."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.fuzzing import Fuzz, files_like
from tests.hostile.refusals import Case, check_refused
from tests.support.runs import options
from xrep.config import compose
from xrep.config.fields import fields_of_class
from xrep.errors import ConfigError
from xrep.registry import LR_SCHEDULERS, OPTIMIZERS, REGISTRIES, load_target
from xrep.training.checkpoint import lock
from xrep.training.progress import METRICS, Progress
from xrep_cli.train import main

TINY = {"hidden_size": 8, "heads": 1, "feedforward_size": 8, "criterion": "translation_ranking", "max_steps": 1}


@pytest.fixture(scope="module")
def run(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    assert main([str(data_directory), *options(save_dir=directory, **TINY)]) == 0
    return directory


def command(data: Path, save_dir: str, **given: Any) -> str:
    return " ".join([str(data), *options(save_dir=save_dir, **{**TINY, **given})])


def test_save_directories(data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for name, target in (("dangling", "nowhere"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    cases = {
        "file": "file: is a file, not a directory; choose another --save-dir",
        "file/run": "file: is a file, not a directory",
        "pipe": "pipe: is a file, not a directory",
        "dangling": "dangling: is a link that leads nowhere",
        "loop/run": "loop: is a link that leads nowhere",
        ".": ".: is not empty and holds no run",
        "/dev/null": "/dev/null: is a file, not a directory",
        "/proc/run": "/proc/run",
        "x" * 300: "File name too long",
    }
    for place, message in cases.items():
        check_refused(Case("train", command(data_directory, place), message), tmp_path, capsys)


RUN_FILES = [
    ".lock", "config.yaml", "metrics.jsonl", "summary.json", "training_hashes.npy", "log.txt", "launches.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_file_of_the_run_is_something_else(
    data_directory: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, make: Any
) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    (tmp_path / "run" / name).unlink()
    make(tmp_path / "run" / name)
    message = f"run/{name}: is not what a run writes there; remove it"
    check_refused(Case("train", command(data_directory, "run"), message), tmp_path, capsys)


def test_folders_of_the_run_are_something_else(
    data_directory: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("last", "best", "tensorboard"):
        shutil.copytree(run, tmp_path / name, symlinks=True)
        (tmp_path / name / name).unlink(missing_ok=True)
        (tmp_path / name / name).write_text("mine")
        message = f"{name}/{name}: is not what a run writes there; remove it"
        check_refused(Case("train", command(data_directory, name), message), tmp_path, capsys)


def test_names_that_are_no_checkpoints_stay(
    data_directory: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run, directory, symlinks=True)
    (directory / "checkpoint-notes").mkdir()
    (directory / "checkpoint-99" / "mine").mkdir(parents=True)
    (directory / ".checkpoint-note").write_text("mine")
    assert main([str(data_directory), *options(save_dir=directory, **{**TINY, "max_steps": 2})]) == 0
    capsys.readouterr()
    assert (directory / "checkpoint-notes").is_dir() and (directory / "checkpoint-99" / "mine").is_dir()
    assert (directory / "last").resolve().name == "checkpoint-00000002" and (directory / ".checkpoint-note").exists()


def test_two_runs_in_one_directory(
    data_directory: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    with lock(tmp_path / "run"):
        # A lock of the operating system is one of a process, so this process pretends to be another.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("xrep.training.checkpoint.try_lock", lambda *_, **__: False)
            case = Case("train", command(data_directory, "run"), " is training here; wait for it, or choose another")
            check_refused(case, tmp_path, capsys)


BAD_NUMBERS = ("", "abc", "-1", "1e3", "9" * 30, " 2", "0x1")
ENVIRONMENTS: list[tuple[dict[str, str], str]] = [
    *(({"WORLD_SIZE": text}, "WORLD_SIZE in the environment is") for text in (*BAD_NUMBERS, "0")),
    *(({"WORLD_SIZE": "2", "RANK": text}, "RANK in the environment is") for text in (*BAD_NUMBERS, "2")),
    ({"WORLD_SIZE": "2"}, "RANK in the environment is ''"),
    *(({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": x}, "LOCAL_RANK in the") for x in (*BAD_NUMBERS, "2")),
    *(({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": x}, "MASTER_PORT in the") for x in (*BAD_NUMBERS, "0", "65536")),
    *(({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "9", "MASTER_ADDR": x}, "is not the name of a host")
      for x in ("", "::::", "a" * 300, "a..b")),
]  # fmt: skip


def test_environments(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for environment, message in ENVIRONMENTS:
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        check_refused(Case("train", command(data_directory, "run"), message), tmp_path, capsys)


@pytest.mark.slow
def test_metrics_are_read_whatever_they_hold(fuzz: Fuzz) -> None:
    lines = b"".join(json.dumps({"step": step, "kind": "train", "loss": 0.5}).encode() + b"\n" for step in (1, 2, 3))

    def read(path: Path) -> None:
        content = path.read_bytes()
        Progress(Progress.Config(tensorboard=False), path.parent, resumed_step=2).close()
        kept = path.read_bytes()
        path.write_bytes(content)
        (path.parent / "log.txt").unlink()
        assert all(line in content.split(b"\n") and json.loads(line)["step"] <= 2 for line in kept.splitlines())

    fuzz("metrics.jsonl", METRICS, files_like(lines, b"[" * 3000 + b"\n" + lines), read)


SECTIONS = {
    "trainer": ["xrep.training.trainer:Trainer"], "checkpoint": ["xrep.training.checkpoint:Checkpoints"],
    "distributed": ["xrep.training.distributed:Distributed"], "logging": ["xrep.training.progress:Progress"],
    "optimizer": [OPTIMIZERS.target(name) for name in OPTIMIZERS.names()],
    "lr_scheduler": [LR_SCHEDULERS.target(name) for name in LR_SCHEDULERS.names()],
    "validation": [REGISTRIES["validation"].target(name) for name in REGISTRIES["validation"].names()],
}  # fmt: skip
NUMBERS = [
    "inf", "-inf", "nan", "1e400", "1e308", "5e-324", "0", "-0.0", "-1", "1", "0.5", "9" * 400, 2**63, -(2**63),
    10**4000, 2**63 - 1, 1e300, True, None, "", "abc", [], [1e300, -1], {"a": 1}, "0x10", "1_000", "１２",
]  # fmt: skip


def options_of(target: str) -> list[str]:
    part = load_target(target)
    annotations = {spec.name: str(spec.annotation) for spec in fields_of_class("", part.Config)}
    return [name for name, kind in annotations.items() if "int" in kind or "float" in kind]


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_extreme_numbers_are_refused_or_make_a_schedule(data: st.DataObject) -> None:
    """What is accepted gives a finite learning rate at every point of the training."""
    section = data.draw(st.sampled_from(list(SECTIONS)))
    target = data.draw(st.sampled_from(SECTIONS[section]))
    names = {t: n for r in REGISTRIES.values() for n in r.names() for t in [r.target(n)]}
    values: dict[str, Any] = {"name": names[target]} if target in names else {}
    for name in data.draw(st.lists(st.sampled_from(options_of(target) or ["log_every"]), max_size=3)):
        values[name] = data.draw(st.sampled_from(NUMBERS))
    base = {"task": {"name": "bitext", "data": "x"}, "criterion": {"name": "translation_ranking"}}
    try:
        run = compose([("test", {**base, section: values})])
    except ConfigError as error:
        assert str(error).strip()
        return
    config = run.configs["trainer"]
    schedule = run.classes["lr_scheduler"](run.configs["lr_scheduler"])
    for step, spent in ((0, 0.0), (10**6, 0.5), (10**12, 1.0)):
        assert 0 <= schedule.factor(step, spent, 0.1) <= 1
    if config.max_epochs is not None:
        assert int(config.max_epochs * 10**10) >= 0
