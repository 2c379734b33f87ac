"""Several processes do one job: the tasks of a Slurm array and the ranks of torchrun, by their environments alone."""

import fcntl
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.jobs.stages import expected, make_job, run_here, runs
from tests.support.programs import Program, rank_environment
from tests.support.runs import environment
from xrep.errors import UserError
from xrep.jobs.engines import Engine, WorkerShare, share_of
from xrep.jobs.notes import retry

SLURM = Engine(engine="slurm")


def task(number: int, count: int, first: int = 0) -> dict[str, str]:
    """Return the variables that Slurm sets for a task of an array."""
    values = {"ID": number + first, "COUNT": count, "MIN": first}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def start(folder: Path, variables: Mapping[str, str], seconds: float = 0.1, engine: str = "slurm") -> Program:
    return Program("tests.jobs.stages", [folder, seconds, engine], {**environment(), **variables})


def ended(program: Program) -> tuple[int | None, str]:
    out, err = program.communicate()
    assert "Traceback" not in err or program.returncode, err
    return program.returncode, out.strip()


def test_the_share_of_a_process() -> None:
    assert share_of(SLURM, task(2, 5)) == WorkerShare(2, 5)
    assert share_of(SLURM, task(2, 5, first=1)) == WorkerShare(2, 5)
    assert share_of(Engine(), rank_environment(1, 3, 29500)) == WorkerShare(1, 3)
    assert share_of(Engine(), {}) == WorkerShare(0, 1)


REFUSED = {
    "the environment has no SLURM_ARRAY_TASK_ID": {},
    "SLURM_ARRAY_TASK_COUNT is 'many'": {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "many"},
    "this is process 7 of 3; .* must count from 0, without gaps, to 2": task(7, 3),
    "this is process 7 of 3; .* must count from 1, without gaps, to 3": task(7, 3, first=1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_environment_that_tells_no_share_is_refused(message: str) -> None:
    with pytest.raises(UserError, match=message):
        share_of(SLURM, REFUSED[message])


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Ray is not installed; pip install 'xrep\[ray\]'"):
        share_of(Engine(engine="ray"), {})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["slurm", "local"])
def test_three_processes_share_a_job(tmp_path: Path, engine: str) -> None:
    places = [task(number, 3) if engine == "slurm" else rank_environment(number, 3, 29500) for number in range(3)]
    results = [ended(program) for program in [start(tmp_path, place, engine=engine) for place in places]]
    assert {code for code, _ in results} == {0} and "done" in {said for _, said in results}
    assert (tmp_path / "out").read_text() == expected(12) and sorted(runs(str(tmp_path / "out.job"))) == list(range(12))


def test_one_process_does_not_begin_what_several_are_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    job.begin()
    with open(Path(job.address, "lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with pytest.raises(UserError, match="out: another process is writing it"):
            run_here(make_job(tmp_path))
        for name, value in task(0, 2).items():
            monkeypatch.setenv(name, value)
        assert run_here(make_job(tmp_path), SLURM) == {"total": expected(12)}, "one of the several may"


@pytest.mark.slow
def test_a_task_that_never_starts_is_not_waited_for(tmp_path: Path) -> None:
    assert ended(start(tmp_path, task(1, 3))) == (0, "done")
    assert (tmp_path / "out").read_text() == expected(12)
    assert ended(start(tmp_path, task(2, 3))) == (0, "shared"), "it finds the job finished"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_task_that_was_killed_goes_on_when_it_is_requeued(tmp_path: Path, number: signal.Signals) -> None:
    """Slurm starts it with the same number, and so what it had begun is its own and need not be waited for."""
    program, address = start(tmp_path, task(0, 2)), str(tmp_path / "out.job")
    while len(runs(address)) < 4:
        time.sleep(0.01)
    program.send_signal(number)
    assert ended(program)[0] == -number and not (tmp_path / "out").exists()
    assert ended(start(tmp_path, task(0, 2))) == (0, "done"), "or it waits for ever"
    assert (tmp_path / "out").read_text() == expected(12) and len(runs(address)) <= 13


@pytest.mark.slow
def test_what_a_dead_task_had_begun_is_taken_over_after_a_while(tmp_path, monkeypatch):
    dead = make_job(tmp_path)
    dead.begin()
    dead.notes(dead.stages[0]).begin(12)
    assert dead.notes(dead.stages[0]).claim(11, "0 of 2")
    monkeypatch.setattr("xrep.jobs.notes._PATIENCE", 0.5)
    for name, value in task(1, 2).items():
        monkeypatch.setenv(name, value)
    assert run_here(make_job(tmp_path), SLURM) == {"total": expected(12)}


@pytest.mark.slow
def test_a_unit_that_always_fails_keeps_no_other_from_being_done(tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.jobs.plan._PAUSE", 0.0)
    for name, value in task(0, 2).items():
        monkeypatch.setenv(name, value)
    job = make_job(tmp_path, faults={5: "fail"})
    with pytest.raises(UserError, match="1 units of squares failed"):
        run_here(job, SLURM)
    assert len(job.notes(job.stages[0]).numbers("done")) == 11 and runs(job.address).count(5) == 3
    with pytest.raises(UserError, match="1 units of squares failed"):
        run_here(make_job(tmp_path), SLURM)
    assert job.notes(job.stages[0]).numbers("failed") == {5} and retry(job.address) == 1
    assert run_here(make_job(tmp_path), SLURM) == {"total": expected(12)}
