"""``xrep-sweep``: the runs of a grid, their ranking, and what happens when some stop or fail."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.commands import Commands
from tests.support.runs import options
from xrep.config.yaml_files import load_yaml
from xrep.errors import UserError
from xrep.interrupts import Interrupted
from xrep.models.directory import open_checkpoint
from xrep.training import sweep
from xrep.training.sweep import ranking, run_trials, trials_of
from xrep_cli.sweep import main

RUN = {"criterion": "translation_ranking", "max_steps": 2, "warmup_steps": 0, "validate_every": 1}


def write_recipe(folder: Path, data: Path, **values: Any) -> Path:
    """Write the recipe of a tiny run as YAML, through --print-config."""
    path = folder / "recipe.yaml"
    line = [str(data), *options(**{**RUN, **values}), "--print-config"]
    from xrep_cli import train

    with pytest.MonkeyPatch.context() as patch:
        printed = list[str]()
        patch.setattr("builtins.print", lambda *text, **_: printed.extend(map(str, text)))
        assert train.main(line) == 0
    path.write_text("".join(printed), encoding="utf-8")
    return path


def finish(directory: Path, value: float, maximize: bool = True) -> None:
    directory.mkdir(parents=True)
    best = {"metric": "accuracy", "value": value, "maximize": maximize}
    (directory / "summary.json").write_text(json.dumps({"best": best}))


@pytest.mark.slow
def test_a_grid_is_trained_ranked_and_not_trained_again(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe = write_recipe(tmp_path, data_directory)
    given = [str(recipe), "--grid", "optimizer.lr=1e-9,1e-2", "--seeds", "3", "--parallel", "2"]
    given += ["--save-dir", str(tmp_path / "search"), "--max-steps", "3"]
    assert main(given) == 0
    printed = capsys.readouterr()
    header, best, other = (tmp_path / "search" / "sweep.tsv").read_text().splitlines()
    assert header.split("\t") == ["optimizer.lr", "accuracy", "deviation", "runs", "directories"]
    for row in (best, other):
        lr, accuracy, _, count, directory = row.split("\t")
        summary = json.loads((Path(directory) / "summary.json").read_text())
        assert summary["steps"] == 3 and f"{summary['best']['value']:.4f}" == accuracy and count == "1"
        assert Path(directory).name == f"lr{lr}-seed3"
    assert float(best.split("\t")[1]) >= float(other.split("\t")[1])
    assert f"the best: {best.split(chr(9))[-1]}/best" in printed.out and "2 of 2: " in printed.err
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "search").glob("*/summary.json")}
    assert main(given) == 0 and "2 of 2 runs are finished already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.slow
def test_courses_are_ranked_by_their_last_stage(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe = write_recipe(tmp_path, data_directory)
    stages = "stages: [{name: one}, {name: two, criterion: {name: translation_ranking, temperature: 0.1}}]\n"
    recipe.write_text(recipe.read_text(encoding="utf-8") + stages, encoding="utf-8")
    grid = ["--grid", "stages.two.optimizer.lr=1e-9,1e-2", "--grid", "task.batch_size=20"]
    given = [str(recipe), *grid, "--save-dir", str(tmp_path / "search")]
    assert main(given) == 0
    header, *rows = (row.split("\t") for row in (tmp_path / "search" / "sweep.tsv").read_text().splitlines())
    assert header[:3] == ["stages.two.optimizer.lr", "task.batch_size", "accuracy"] and len(rows) == 2
    for row in rows:
        run = Path(row[-1])
        assert run.name == f"two.lr{row[0]}-batch_size20" and (run / "best").resolve().parent == run / "two"
        best = json.loads((run / "two" / "summary.json").read_text())["best"]["value"]
        assert row[2] == f"{best:.4f}"
        rates = [load_yaml(run / stage / "config.yaml")["optimizer"]["lr"] for stage in ("one", "two")]
        assert rates == [0.003, float(row[0])]
    assert float(rows[0][2]) >= float(rows[1][2])
    capsys.readouterr()
    assert main(given) == 0 and "2 of 2 runs are finished already" in capsys.readouterr().err


def test_combinations_are_ranked_by_the_mean_over_their_seeds(tmp_path: Path) -> None:
    grid = {"optimizer.lr": ["1", "2", "3"], "criterion.margin": ["0"]}
    trials = trials_of(grid, ["7", "8"], tmp_path, ["--config", "c.yaml"])
    assert [trial.directory.name for trial in trials[:2]] == ["lr1-margin0-seed7", "lr2-margin0-seed7"]
    assert trials[0].options == [
        "--config", "c.yaml", "optimizer.lr=1", "criterion.margin=0", "seed=7",
        f"checkpoint.save_dir={tmp_path}/lr1-margin0-seed7",
    ]  # fmt: skip
    for trial, value in zip(trials, (50.0, 60.0, 55.0, 70.0, 40.0), strict=False):  # the last one has not finished
        finish(trial.directory, value)
    ranked = ranking(trials)
    assert [each.trials[0].values["optimizer.lr"] for each in ranked] == ["1", "3", "2"]
    assert [(each.mean, len(each.scores)) for each in ranked] == [(60.0, 2), (55.0, 1), (50.0, 2)]
    assert ranked[0].deviation == pytest.approx(200**0.5) and ranked[1].deviation == 0


def test_a_loss_is_ranked_downward(tmp_path: Path) -> None:
    trials = trials_of({"optimizer.lr": ["1", "2"]}, [], tmp_path, [])
    for trial, value in zip(trials, (2.0, 1.0), strict=True):
        finish(trial.directory, value, maximize=False)
    assert [each.mean for each in ranking(trials)] == [1.0, 2.0]


def stub(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let runs be a script, which gets the options of xrep-train, in place of training."""
    path = folder / "stub"
    path.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sweep, "sys", SimpleNamespace(executable=str(path)))
    monkeypatch.setattr(sweep, "is_finished", lambda run: False)


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, monkeypatch, "print('so it is'); sys.exit(2 if 'optimizer.lr=2' in sys.argv else 0)")
    trials = trials_of({"optimizer.lr": ["1", "2", "3"]}, [], tmp_path, [])
    said = list[str]()
    failed = run_trials(trials, [[None]] * 3, 2, said.append)  # type: ignore[list-item]
    assert failed == {trials[1]: "so it is"} and sorted(said)[-1][:8] == "3 of 3: " and len(said) == 3
    assert trials[0].log.read_text() == "so it is\n"


@pytest.mark.slow
def test_a_run_that_was_stopped_is_not_taken_for_a_finished_one(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Somebody sends SIGTERM to a run alone, which saves and ends; its last line is told."""
    recipe, run = write_recipe(tmp_path, data_directory, save_every=5, validate_every=0), tmp_path / "search" / "lr1e-2"
    given = [str(recipe), "--grid", "optimizer.lr=1e-2", "--save-dir", str(tmp_path / "search")]

    def stop() -> None:
        while not (run / "last").exists():
            threading.Event().wait(0.05)
        os.kill(int((run / ".lock").read_text().split()[1]), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    assert main([*given, "--max-steps", "100000"]) == 2
    said = capsys.readouterr().err
    assert "1 of 1: lr1e-2: failed" in said
    assert "1 of 1 runs failed; the first: stopped by SIGTERM after step" in said
    assert main([*given, "--max-steps", str(open_checkpoint(run / "last").step + 1)]) == 0


@pytest.mark.parametrize(
    ("count", "visible", "parallel", "expected"),
    [
        (2, None, 2, {"0", "1"}),
        (4, "7,GPU-5a,2,3", 2, {"7", "GPU-5a"}),
        (1, "5", 2, {"5"}),
        (1, None, 2, {"0"}),
        (2, None, 1, {"unset"}),
        (0, None, 2, {"unset"}),
        (0, "", 2, {""}),
    ],
)
def test_runs_that_train_at_a_time_have_gpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, visible: str | None, parallel: int, expected: set[str]
) -> None:
    """There is no GPU here, so their number is given. Each run waits until as many have started as may train at once,
    so that the first ones train at the same time."""
    stub(tmp_path, monkeypatch, (
        "from pathlib import Path\n"
        "place = Path(sys.argv[-1].split('=')[1])\n"
        "place.touch()\n"
        f"while len(list(place.parent.glob('*-ready'))) < {parallel}: time.sleep(0.01)\n"
        "print(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))"
    ))  # fmt: skip
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trials = trials_of({"optimizer.lr": ["1", "2", "3"]}, [], tmp_path, [])
    trials = [replace(trial, options=[f"out={trial.directory}-ready"]) for trial in trials]
    assert run_trials(trials, [[None]] * 3, parallel, lambda text: None) == {}  # type: ignore[list-item]
    seen = [trial.log.read_text()[:-1] for trial in trials]
    assert {*seen[:2]} == {*seen} == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_all_runs_and_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    stub(tmp_path, monkeypatch, (
        "signal.signal(signal.SIGINT, lambda *_: (print('saved'), sys.exit(130)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)"
    ))  # fmt: skip
    trials = trials_of({"optimizer.lr": ["1", "2", "3"]}, [], tmp_path, [])

    def interrupt() -> None:
        while not all(trial.log.exists() and "ready" in trial.log.read_text() for trial in trials[:2]):
            threading.Event().wait(0.05)
        os.kill(os.getpid(), number)

    # A shell that starts the tests in the background lets them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(Interrupted, match="the same command goes on from there"):
            run_trials(trials, [[None]] * 3, 2, lambda text: None)  # type: ignore[list-item]
    finally:
        signal.signal(signal.SIGINT, before)
    assert [trial.log.exists() for trial in trials] == [True, True, False]
    assert all(trial.log.read_text() == "ready\nsaved\n" for trial in trials[:2])


SWEEP = "recipe.yaml --save-dir out"
CASES = [
    (f"{SWEEP} --grid lr=1,2", "--grid 'lr=1,2'; write --grid SECTION.OPTION=A,B, such as"),
    (f"{SWEEP} --grid optimizer.lr=", "--grid 'optimizer.lr='; write"),
    (f"{SWEEP} --grid optimizer.lr=1 --grid optimizer.lr=2", "--grid 'optimizer.lr=2'; write"),
    (f"{SWEEP} --grid optimizer.lr=1,1", "two runs would have the directory lr1; name each value"),
    (f"{SWEEP} --grid optimizer.lr=1 --parallel 0", "--parallel 0; give at least 1"),
    (f"{SWEEP} --grid optimizer.lr={','.join(map(str, range(10_001)))}", "a grid of 10,001 runs"),
    (f"{SWEEP} --grid optimizer.lr=-1", "lr must"),
    (f"{SWEEP} --grid optimizer.rate=1", "unknown key"),
    (f"{SWEEP} --grid optimizer.lr=1 --colour red", "unknown option --colour"),
    ("absent.yaml --save-dir out --grid optimizer.lr=1", "absent.yaml: no such file"),
    ("recipe.yaml --grid optimizer.lr=1", "--save-dir"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), CASES)
def test_refusals(line: str, message: str, data_directory: Path, tmp_path: Path, cli: Commands) -> None:
    (tmp_path / "recipe.yaml").write_text(
        f"task: {{name: bitext, data: {data_directory}}}\ncriterion: translation_ranking\n", encoding="utf-8"
    )
    result = cli("sweep", *line.split())
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1 and not result.wrote


def test_runs_without_validation_cannot_be_ranked(tmp_path: Path) -> None:
    trials = trials_of({"optimizer.lr": ["1"]}, [], tmp_path, [])
    trials[0].directory.mkdir()
    nothing = {"metric": None, "value": None, "maximize": None}
    (trials[0].directory / "summary.json").write_text(json.dumps({"best": nothing}))
    with pytest.raises(UserError, match="has no validation by which it could be ranked"):
        ranking(trials)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"best": 3}', '{"best": {"metric": "x", "value": 1}}', "[" * 9999]
)
def test_a_damaged_summary_is_named(tmp_path: Path, content: str) -> None:
    trials = trials_of({"optimizer.lr": ["1"]}, [], tmp_path, [])
    trials[0].directory.mkdir()
    (trials[0].directory / "summary.json").write_text(content)
    with pytest.raises(UserError, match=r"lr1/summary\.json: not the summary of a run; remove that directory"):
        ranking(trials)
