"""``xrep-sweep``: the runs of a grid, their ranking, and what happens when some stop or fail."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.programs import command_server
from tests.support.runs import options
from xrep.config import read_yaml
from xrep.interrupts import Interrupted
from xrep.models.directory import open_checkpoint
from xrep.training import sweep
from xrep.training.sweep import Trial, ranking, run_trials, trials_of


@pytest.fixture
def recipe(data_directory: Path, cli: Commands) -> Path:
    """A tiny run as YAML."""
    given = {"criterion": "translation_ranking", "max_steps": 2, "warmup_steps": 0, "validate_every": 1}
    path = cli.folder / "recipe.yaml"
    path.write_text(cli("train", data_directory, *options(**given), "--print-config").out, encoding="utf-8")
    return path


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let runs be forked from a process that has imported torch, one at a time."""
    with command_server() as command:
        path = tmp_path / "python"
        path.write_text(command("xrep_cli.train", "main", []).replace("*sys.argv,", "sys.argv[0], *sys.argv[3:],"))
        path.chmod(0o755)
        monkeypatch.setattr("xrep_cli.sweep.TRAINING", [str(path), "-m", "xrep_cli.train"])
        yield


def trials_in(folder: Path, *rates: str) -> list[Trial]:
    return trials_of({"optimizer.lr": list(rates)}, [], folder, [])


def finish(directory: Path, value: float, maximize: bool = True) -> None:
    directory.mkdir(parents=True)
    best = {"metric": "accuracy", "value": value, "maximize": maximize}
    (directory / "summary.json").write_text(json.dumps({"best": best}))


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_grid_is_trained_ranked_and_not_trained_again(recipe: Path, cli: Commands) -> None:
    line = "recipe.yaml --grid optimizer.lr=1e-9,1e-2 --seeds 3 --parallel 2 --save-dir search --max-steps 3".split()
    done = cli("sweep", *line)
    assert done.code == 0
    header, best, other = (cli.folder / "search" / "sweep.tsv").read_text().splitlines()
    assert header.split("\t") == ["optimizer.lr", "accuracy", "deviation", "runs", "directories"]
    for row in (best, other):
        lr, accuracy, _, count, directory = row.split("\t")
        summary = json.loads((cli.folder / directory / "summary.json").read_text())
        assert summary["steps"] == 3 and f"{summary['best']['value']:.4f}" == accuracy and count == "1"
        assert Path(directory).name == f"lr{lr}-seed3"
    assert float(best.split("\t")[1]) >= float(other.split("\t")[1])
    assert f"the best: {best.split(chr(9))[-1]}/best" in done.out and "2 of 2: " in done.err
    again = cli("sweep", *line)
    assert again.code == 0 and "2 of 2 runs are finished already" in again.err
    assert not any(name.endswith("summary.json") for name in again.wrote)
    # Other options of finished runs would have other results.
    assert cli("sweep", *line, "--log-every", "7").code == 0
    other = cli("sweep", *line, "--batch-size", "8")
    assert other.code == 2 and "it had finished with another task.batch_size, and is not trained again" in other.err
    long = [f"{cli.folder}/{'long' * 40}{name}.tsv" for name in "ab"]
    done = cli("sweep", "recipe.yaml", "--grid", f"task.exclude=[{long[0]}],[{long[1]}]", "--save-dir", "others")
    assert done.code == 2 and "the names of two runs, which have at most 200 characters, are the same" in done.err


@pytest.mark.slow
def test_a_run_that_failed_is_not_ranked_by_an_earlier_one(recipe: Path, cli: Commands, monkeypatch) -> None:
    """Its directory has the summary of a shorter training."""
    script = "import sys; sys.exit('optimizer.lr=1' in sys.argv)"
    monkeypatch.setattr("xrep_cli.sweep.TRAINING", [sys.executable, "-c", script])
    for rate, accuracy in (("1", 99.0), ("2", 3.0)):
        finish(cli.folder / "search" / f"lr{rate}", accuracy)
    done = cli("sweep", "recipe.yaml", "--grid", "optimizer.lr=1,2", "--save-dir", "search")
    assert done.code == 2 and "1 of 2 runs failed" in done.err and "the best: search/lr2/best" in done.out
    assert "99" not in (cli.folder / "search" / "sweep.tsv").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_courses_are_ranked_by_their_last_stage(recipe: Path, cli: Commands) -> None:
    stages = "stages: [{name: one}, {name: two, criterion: {name: translation_ranking, temperature: 0.1}}]\n"
    recipe.write_text(recipe.read_text(encoding="utf-8") + stages, encoding="utf-8")
    grid = "--grid stages.two.optimizer.lr=1e-9,1e-2 --grid task.batch_size=20"
    assert cli("sweep", "recipe.yaml", *grid.split(), "--save-dir", "search").code == 0
    header, *rows = (row.split("\t") for row in (cli.folder / "search" / "sweep.tsv").read_text().splitlines())
    assert header[:3] == ["stages.two.optimizer.lr", "task.batch_size", "accuracy"] and len(rows) == 2
    for row in rows:
        run = cli.folder / row[-1]
        assert run.name == f"two.lr{row[0]}-batch_size20" and (run / "best").resolve().parent == run / "two"
        best = json.loads((run / "two" / "summary.json").read_text())["best"]["value"]
        assert row[2] == f"{best:.4f}"
        rates = [read_yaml(run / stage / "config.yaml")["optimizer.lr"] for stage in ("one", "two")]
        assert rates == [0.003, float(row[0])]


def test_combinations_are_ranked_by_the_mean_over_their_seeds(tmp_path: Path) -> None:
    grid = {"optimizer.lr": ["1", "2", "3"], "criterion.margin": ["0"]}
    trials = trials_of(grid, ["7", "8"], tmp_path, ["--config", "c.yaml"])
    assert [trial.directory.name for trial in trials[:2]] == ["lr1-margin0-seed7", "lr2-margin0-seed7"]
    place = f"checkpoint.save_dir={tmp_path}/lr1-margin0-seed7"
    assert trials[0].options == [*"--config c.yaml optimizer.lr=1 criterion.margin=0 seed=7".split(), place]
    for trial, value in zip(trials, (50.0, 60.0, 55.0, 70.0, 40.0), strict=False):  # the last one has not finished
        finish(trial.directory, value)
    ranked = ranking(trials)
    assert [each.trials[0].values["optimizer.lr"] for each in ranked] == ["1", "3", "2"]
    assert [(each.mean, len(each.scores)) for each in ranked] == [(60.0, 2), (55.0, 1), (50.0, 2)]
    assert ranked[0].deviation == pytest.approx(200**0.5) and ranked[1].deviation == 0


def test_a_loss_is_ranked_downward(tmp_path: Path) -> None:
    trials = trials_in(tmp_path, "1", "2")
    for trial, value in zip(trials, (2.0, 1.0), strict=True):
        finish(trial.directory, value, maximize=False)
    assert [each.mean for each in ranking(trials)] == [1.0, 2.0]


def stub(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> list[str]:
    """Return the command of a script, which gets the options of xrep-train, in place of training."""
    path = folder / "stub.py"
    path.write_text(f"import os, signal, sys, time\nfrom pathlib import Path\n{script}\n")
    monkeypatch.setattr(sweep, "is_finished", lambda run: False)
    return [sys.executable, str(path)]


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = stub(tmp_path, monkeypatch, "print('so it is'); sys.exit(2 if 'optimizer.lr=2' in sys.argv else 0)")
    trials, said = trials_in(tmp_path, "1", "2", "3"), list[str]()
    failed = run_trials(program, trials, [[None]] * 3, 2, said.append)  # type: ignore[list-item]
    assert failed == {trials[1]: "so it is"} and sorted(said)[-1][:8] == "3 of 3: " and len(said) == 3
    assert trials[0].log.read_text() == "so it is\n"


def when(ready: Callable[[], bool], process: Callable[[], int], number: signal.Signals) -> None:
    """Send a process a signal as soon as something is ready."""

    def send() -> None:
        while not ready():
            threading.Event().wait(0.05)
        os.kill(process(), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_run_that_was_stopped_is_not_taken_for_a_finished_one(recipe: Path, cli: Commands) -> None:
    """Somebody sends SIGTERM to a run alone, which saves and ends; its last line is told."""
    run = cli.folder / "search" / "lr1e-2"
    line = "recipe.yaml --grid optimizer.lr=1e-2 --save-dir search --validate-every 0 --save-every 5 --max-steps"
    launches = run / "launches.jsonl"
    when((run / "last").exists, lambda: json.loads(launches.read_text().split("\n")[0])["process"], signal.SIGTERM)
    done = cli("sweep", *line.split(), 100_000)
    assert done.code == 2 and "1 of 1: lr1e-2: failed" in done.err
    assert "1 of 1 runs failed; the first: stopped by SIGTERM after step" in done.err
    assert cli("sweep", *line.split(), open_checkpoint(run / "last").step + 1).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("count", "visible", "parallel", "expected"), [
    (2, None, 2, {"0", "1"}), (4, "7,GPU-5a,2,3", 2, {"7", "GPU-5a"}), (1, "5", 2, {"5"}), (1, None, 2, {"0"}),
    (2, None, 1, {"unset"}), (0, None, 2, {"unset"}), (0, "", 2, {""}),
])  # fmt: skip
def test_runs_that_train_at_a_time_have_gpus_of_their_own(tmp_path, monkeypatch, count, visible, parallel, expected):
    """There is no GPU here, so their number is given. Each run waits until as many have started as may train at once,
    so that the first ones train at the same time."""
    program = stub(tmp_path, monkeypatch, (
        "place = Path(sys.argv[-1].split('=')[1])\n"
        "place.touch()\n"
        f"while len(list(place.parent.glob('*-ready'))) < {parallel}: time.sleep(0.01)\n"
        "print(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))\n"
        f"assert {parallel} == 1 or os.environ['OMP_NUM_THREADS'] == str(8 // {parallel})"
    ))  # fmt: skip
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8))  # of more that the machine has
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trials = trials_in(tmp_path, "1", "2", "3")
    trials = [replace(trial, options=[f"out={trial.directory}-ready"]) for trial in trials]
    assert run_trials(program, trials, [[None]] * 3, parallel, lambda text: None) == {}  # type: ignore[list-item]
    seen = [trial.log.read_text()[:-1] for trial in trials]
    assert {*seen[:2]} == {*seen} == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_all_runs_and_starts_no_other(tmp_path, monkeypatch, number):
    program = stub(tmp_path, monkeypatch, (
        "signal.signal(signal.SIGINT, lambda *_: (print('saved'), sys.exit(130)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)"
    ))  # fmt: skip
    trials = trials_in(tmp_path, "1", "2", "3")
    # A shell that starts the tests in the background lets them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    when(
        lambda: all(trial.log.exists() and "ready" in trial.log.read_text() for trial in trials[:2]), os.getpid, number
    )
    try:
        with pytest.raises(Interrupted, match="the same command goes on from there"):
            run_trials(program, trials, [[None]] * 3, 2, lambda text: None)  # type: ignore[list-item]
    finally:
        signal.signal(signal.SIGINT, before)
    assert [trial.log.exists() for trial in trials] == [True, True, False]
    assert all(trial.log.read_text() == "ready\nsaved\n" for trial in trials[:2])


def test_a_mistake_in_a_recipe_names_the_options(cli: Commands) -> None:
    (cli.folder / "recipe.yaml").write_text("seed: 1\n")
    done = cli("sweep", "recipe.yaml", "--grid", "optimizer.lr=1,2", "--save-dir", "search")
    assert "no task is chosen; set --task to one of bitext, " in done.err and not done.wrote
