"""``xrep-jobs`` as a user runs it."""

import json
from pathlib import Path

import pytest

from tests.jobs.stages import expected, make_job, run_here
from tests.support.commands import Commands
from xrep.errors import UserError
from xrep.jobs.plan import Job


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of six units, two of which have failed; out.job is its folder."""
    monkeypatch.setattr("xrep.jobs.plan._PAUSE", 0.0)
    job = make_job(tmp_path, 6, faults={2: "fail", 4: "fail"})
    with pytest.raises(UserError):
        run_here(job)
    return job


TABLE = """\
stage    done  running  failed  all  a second  left
-------  ----  -------  ------  ---  --------  ----
squares     4        0       2    6         -     -
total       -        -       -    -         -     -
squares, unit 2: RuntimeError: unit 2 is broken
squares, unit 4: RuntimeError: unit 4 is broken
"""


@pytest.mark.parametrize("name", ["out", "out.job", "out.job/"])
def test_status(name: str, cli: Commands, failed: Job) -> None:
    shown = cli("jobs", "status", name)
    assert (shown.code, shown.out, shown.err, shown.wrote) == (0, TABLE, "", frozenset())


def test_the_whole_logs(cli: Commands, failed: Job) -> None:
    shown = cli("jobs", "status", "out", "--log").out
    assert shown.count("Traceback (most recent call last):") == 2 and "\nsquares, unit 4:\nTraceback" in shown


def test_rate_and_time_left(cli: Commands, tmp_path: Path) -> None:
    job = make_job(tmp_path, 200, seconds=0.1)
    job.begin()
    squares = job.stages[0]
    job.notes(squares).begin(200)
    for number in range(4):
        job.notes(squares).claim(number, f"{number} of 4")
    job.do(squares, 0, lambda done: None)
    shown = json.loads(cli("jobs", "status", "out", "--json").out)
    first = shown["stages"][0]
    assert (first["done"], first["running"], first["failed"], first["count"]) == (1, 3, [], 200)
    assert first["rate"] == pytest.approx(3 / first["seconds"]) and first["left"] == pytest.approx(199 / first["rate"])
    assert first["seconds"] >= 0.1 and shown["failures"] == []


def test_json(cli: Commands, failed: Job) -> None:
    shown = json.loads(cli("jobs", "status", "out", "--json").out)
    assert shown["job"] == failed.address and [stage["stage"] for stage in shown["stages"]] == ["squares", "total"]
    assert [(each["unit"], each["error"]) for each in shown["failures"]] == [
        (number, f"RuntimeError: unit {number} is broken") for number in (2, 4)
    ]


def test_retry(cli: Commands, failed: Job, tmp_path: Path) -> None:
    assert cli("jobs", "retry", "out").out == "2 units that failed will be tried again\n"
    assert cli("jobs", "retry", "out").out == "0 units that failed will be tried again\n"
    assert run_here(make_job(tmp_path, 6)) == {"total": expected(6)}


def test_what_several_processes_have_finished(cli: Commands, tmp_path: Path) -> None:
    job = make_job(tmp_path, 6)
    job.begin()
    job.finish(keep=True)
    assert cli("jobs", "status", "out").out == f"all is done, and the output is written; {job.address} may be removed\n"
    assert json.loads(cli("jobs", "status", "out", "--json").out)["finished"] is True


@pytest.mark.parametrize("verb", ["status", "retry"])
def test_there_is_no_such_job(verb: str, cli: Commands, tmp_path: Path) -> None:
    refused = cli("jobs", verb, "out")
    assert refused.code == 2 and refused.err.startswith(f"xrep-jobs: error: {tmp_path}/out.job: there is no such job;")
