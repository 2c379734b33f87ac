"""Starting a run: two runs that begin in the same new directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.runs import compose_run
from xrep.errors import UserError
from xrep.training import run as module
from xrep.training.checkpoint import LOCK
from xrep.training.progress import Progress


def test_a_run_that_began_meanwhile_is_not_overwritten(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run creates the directory while this one reads its data."""
    directory, make_task = tmp_path / "run", module._make_task

    def make_task_while_another_run_begins(run):
        directory.mkdir()
        (directory / "config.yaml").write_text("the other run's\n", encoding="utf-8")
        return make_task(run)

    monkeypatch.setattr(module, "_make_task", make_task_while_another_run_begins)
    with pytest.raises(UserError, match="another run has begun here meanwhile"):
        module.train(compose_run(data_directory, directory, max_steps=1))
    left = {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    assert left == {LOCK: "", "config.yaml": "the other run's\n"}


def test_lines_that_are_no_records_are_dropped_on_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    records = [json.dumps({"step": step, "kind": "train"}) for step in (1, 2, 3)]
    path.write_text(
        "\n".join([*records[:2], "[]", "{}", '{"step": null}', '{"step": 1, "ki', records[2]]), encoding="utf-8"
    )
    Progress(Progress.Config(tensorboard=False), tmp_path, resumed_step=2).close()
    assert path.read_text(encoding="utf-8").splitlines() == records[:2]


def test_a_run_of_another_size_names_the_one_it_has(data_directory: Path, tmp_path: Path) -> None:
    """The size auto is another one on another device."""
    run = compose_run(data_directory, tmp_path / "run", max_steps=1)
    module.train(run)
    assert run.values["size"] == "small"
    with pytest.raises(UserError, match="size 'small' -> 'base'; set `size` to small to go on with it, or choose"):
        module.train(compose_run(data_directory, tmp_path / "run", max_steps=1, size="base"))
