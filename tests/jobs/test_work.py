"""Workers know of each other by the files of their job alone."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from xrep.jobs import work
from xrep.jobs.outputs import repeatable, states_of
from xrep.jobs.plan import Advance, Job, Stage


class Slow(Stage):
    name = "slow"

    def __init__(self) -> None:
        self.runs = 0

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        self.runs += 1
        time.sleep(1.5)
        return {}


def test_a_unit_that_takes_long_is_not_begun_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is heard of in the meantime."""
    monkeypatch.setattr("xrep.jobs.notes._PATIENCE", 0.6)
    stage = Slow()
    job = Job(str(tmp_path / "a.job"), "wait", {}, [stage])
    job.begin()
    threads = [
        threading.Thread(target=work.work, args=(job, work.WorkerShare(number, 2), False)) for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stage.runs == 1 and job.notes(stage).numbers("done") == {0}


def test_a_file_that_is_named_like_a_copy_is_known_by_its_state(tmp_path: Path) -> None:
    file, output = tmp_path / "input-0123456789abcdef.txt", tmp_path / "out"
    file.write_text("one")
    before = states_of([file])
    file.write_text("another")
    assert states_of([file]) != before
    copies = [repeatable([content], output) for content in (b"a", b"a", b"b")]
    assert states_of(copies[:1]) == states_of(copies[1:2]) != states_of(copies[2:])
