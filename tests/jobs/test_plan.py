"""The folder of a job: what its files decide, and what happens when processes stop, fail or meet."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stages import Squares, expected, make_job, run_job, runs, total
from tests.support.programs import Program
from tests.support.runs import environment
from xrep.errors import UserError
from xrep.jobs.notes import notes_of, retry
from xrep.jobs.plan import Job, Stage
from xrep.jobs.work import Share, work


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrep.jobs.plan._PAUSE", 0.0)


def begun(folder: Path, count: int = 12, **how: Any) -> tuple[Job, Stage]:
    """Return a job whose first stage has begun."""
    job = make_job(folder, count, **how)
    job.begin()
    job.notes(job.stages[0]).begin(count)
    return job, job.stages[0]


def do(job: Job, stage: Stage, number: int) -> bool:
    return job.do(stage, number, lambda done: None)


def markers(job: Job) -> list[str]:
    return sorted(str(path.relative_to(job.address)) for path in Path(job.address).glob("done/*/*.json"))


def test_a_job_leaves_only_its_output(tmp_path: Path) -> None:
    assert run_job(make_job(tmp_path)) == {"total": expected(12)}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.job.ran"}
    assert runs(str(tmp_path / "out.job")) == list(range(12))


def test_the_order_of_units_changes_nothing(tmp_path: Path) -> None:
    job, stage = begun(tmp_path, 20)
    order = list(range(20))
    random.Random(0).shuffle(order)
    assert all(do(job, stage, number) for number in order) and work(job, Share(), False)
    assert total(job) == expected(20) and sorted(runs(job.address)) == list(range(20))


def test_a_unit_with_a_marker_is_not_done_again_and_data_without_a_marker_do_not_count(tmp_path: Path) -> None:
    job, stage = begun(tmp_path)
    for number in (3, 5):
        do(job, stage, number)
    os.unlink(Path(job.address, "done", "squares", "0000005.json"))
    assert run_job(make_job(tmp_path)) == {"total": expected(12)}
    assert sorted(runs(job.address)) == sorted([*range(12), 5])


def test_the_marker_decides_between_the_data_of_two_attempts(tmp_path: Path) -> None:
    """As when two workers did a unit and do not agree: the data of the marker is read, whatever else lies there."""
    job, stage = begun(tmp_path)
    do(job, stage, 1)
    (own,) = Path(job.address, "data").glob("squares-0000001-*")
    own.with_name("squares-0000001-0000000000000000.square.txt").write_text("another\n")
    work(job, Share(), False)
    assert total(job) == expected(12)


def test_a_second_marker_does_not_replace_the_first(tmp_path: Path) -> None:
    job, stage = begun(tmp_path)
    do(job, stage, 1)
    marker = Path(job.address, "done", "squares", "0000001.json")
    before = marker.read_bytes()
    time.sleep(0.01)
    do(job, Squares(12, seconds=0.01), 1)
    assert marker.read_bytes() == before


def test_a_marker_is_written_after_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, stage = begun(tmp_path)

    def publish(*names: object) -> None:
        raise MemoryError

    monkeypatch.setattr("xrep.store.addresses.publish", publish)
    with pytest.raises(MemoryError):
        do(job, stage, 1)
    assert markers(job) == []


def test_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, stage = begun(tmp_path)
    notes, other = job.notes(stage), job.notes(stage)
    assert notes.claim(0, "0 of 2") and not other.claim(0, "1 of 2")
    assert notes.claim(0, "0 of 2"), "a worker that was started again goes on with what it had begun"
    monkeypatch.setattr("xrep.jobs.notes._PATIENCE", 0.0)
    assert other.claim(0, "1 of 2"), "its worker was not heard of for too long"
    do(job, stage, 0)
    assert not notes.claim(0, "0 of 2"), "it is done since"


def test_a_claim_is_old_by_the_clock_of_the_one_that_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It matters how long nothing was heard of a worker, not what its own clock says."""
    job, stage = begun(tmp_path)
    notes, other, now = job.notes(stage), job.notes(stage), [1e6]
    monkeypatch.setattr("xrep.jobs.notes._PATIENCE", 60.0)
    assert notes.claim(0, "0 of 2")
    monkeypatch.setattr("xrep.jobs.notes.time.monotonic", lambda: now[0])
    assert not other.claim(0, "1 of 2")
    now[0] += 59
    assert not other.claim(0, "1 of 2")
    claim = Path(notes.place("started", 0))
    claim.write_text(json.dumps({**json.loads(claim.read_text()), "beat": 1}))
    now[0] += 59
    assert not other.claim(0, "1 of 2"), "it was heard of in between"
    now[0] += 61
    assert other.claim(0, "1 of 2")


def test_a_unit_at_which_workers_end_is_listed_after_three_times(tmp_path: Path) -> None:
    job, stage = begun(tmp_path)
    notes = job.notes(stage)
    assert [notes.claim(7, "0 of 2") for _ in range(4)] == [True, True, True, False]
    (failure,) = notes.failures()
    assert failure["error"] == "the end of its worker, 3 times"
    assert failure["log"].startswith("The last one was worker 0 of 2 on")
    assert retry(job.address) == 1 and notes.claim(7, "1 of 2")
    assert not notes.claim(7, "0 of 2")
    assert (notes.release("0 of 2", "lost"), notes.release("1 of 2", "lost")) == (0, 1)
    assert notes.claim(7, "0 of 2"), "its worker is known to have ended"


def test_three_tries(tmp_path: Path) -> None:
    assert run_job(make_job(tmp_path, 6, faults={2: "once"})) == {"total": expected(6)}
    assert runs(str(tmp_path / "out.job")).count(2) == 2


def test_failures_are_listed_and_tried_again(tmp_path: Path) -> None:
    job = make_job(tmp_path, 6, faults={2: "fail", 4: "fail"})
    with pytest.raises(UserError, match="2 units of squares failed, the first one with RuntimeError: unit 2 is broken"):
        run_job(job)
    assert [runs(job.address).count(number) for number in range(6)] == [1, 1, 3, 1, 3, 1]
    squares, after = notes_of(job.address)
    assert [squares.status()[name] for name in ("done", "running", "failed", "count")] == [4, 0, [2, 4], 6]
    assert after.status()["count"] is None
    first, second = squares.failures()
    assert (first["stage"], first["unit"], second["unit"]) == ("squares", 2, 4)
    assert first["log"].startswith("Traceback") and first["log"].rstrip().endswith(first["error"])
    assert retry(job.address) == 2 and squares.failures() == []
    assert run_job(make_job(tmp_path, 6)) == {"total": expected(6)} and len(runs(job.address)) == 12


def test_what_somebody_adds_stays(tmp_path: Path) -> None:
    job, _ = begun(tmp_path)
    (tmp_path / "out.job" / "thesis.txt").write_text("mine")
    run_job(make_job(tmp_path))
    assert [path.name for path in Path(job.address).iterdir()] == ["thesis.txt"]


def test_a_job_that_several_finished_is_done_again_only_without_its_output(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.begin()
    work(job, Share(), False)
    (tmp_path / "out").write_text(total(job))
    job.finish(keep=True)
    assert [path.name for path in Path(job.address).iterdir()] == ["finished.json"]
    assert not make_job(tmp_path).begin(str(tmp_path / "out")) and make_job(tmp_path).has_ended()
    (tmp_path / "out").unlink()
    again = make_job(tmp_path)
    assert again.begin(str(tmp_path / "out")) and not again.has_ended()


def test_another_job_begins_where_several_have_finished_one(tmp_path: Path) -> None:
    """It removes nothing but the record of the old one, so several may begin at a time without a lock."""
    job, output = make_job(tmp_path), tmp_path / "out"
    job.begin()
    output.write_text("")
    job.finish(keep=True)
    first, second = make_job(tmp_path, seed=1), make_job(tmp_path, seed=1)
    assert first.begin(str(output))
    first.notes(first.stages[0]).begin(12)
    assert do(first, first.stages[0], 3)
    assert second.begin(str(output)) and markers(second) == ["done/squares/0000003.json"]
    with pytest.raises(UserError, match="differs in seed"):
        make_job(tmp_path, seed=2).begin(str(output))


def killed(folder: Path, after: int) -> None:
    """Start a job and kill it after so many units."""
    program = Program("tests.jobs.stages", [folder, 0.1, "local"], environment())
    address = str(folder / "out.job")
    while len(runs(address)) <= after and program.poll() is None:
        time.sleep(0.01)
    program.send_signal(signal.SIGKILL)
    program.communicate()


@pytest.mark.slow
def test_a_process_that_is_killed_loses_one_unit(tmp_path: Path) -> None:
    killed(tmp_path, 4)
    address = str(tmp_path / "out.job")
    done = len(list(Path(address, "done", "squares").glob("*.json")))
    assert 4 <= done < 12 and run_job(make_job(tmp_path)) == {"total": expected(12)}
    assert len(runs(address)) <= 13


@pytest.mark.nightly
def test_twenty_kills(tmp_path: Path) -> None:
    """No unit that had a marker is computed again, whenever the process is killed."""
    generator = random.Random(0)
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        for _ in range(3):
            program = Program("tests.jobs.stages", [folder, 0.05, "local"], environment())
            time.sleep(generator.uniform(0.05, 0.6))
            program.send_signal(signal.SIGKILL)
            program.communicate()
            if (folder / "out").exists():
                break
        else:
            run_job(make_job(folder))
        assert (folder / "out").read_text() == expected(12) and len(runs(str(folder / "out.job"))) <= 12 + 3
