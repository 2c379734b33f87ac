"""scripts/kill_commands.py: a few kills of each command, and what it has to find."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "scripts" / "kill_commands.py"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["preprocess"])
def test_killed_commands_write_the_same_in_the_end(script: dict[str, Any], command: str) -> None:
    report = script["run_job"](command, kills=4)
    assert report.problems == [] and len(report.kills) == 4
    assert any("while writing" in kill for kill in report.kills)
    assert command in script["JOBS"]


def test_problems_are_named(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("Haus\thouse\n", encoding="utf-8")
    command = "preprocess --bitext de-en=x.tsv --vocab-size 16000 --destdir out".split()
    report = script["kill_test"](command, ["out"], 1, inputs=tmp_path)
    assert len(report.problems) == 1 and report.kills == []
    assert report.problems[0].startswith("the undisturbed command ends with exit code 2: xrep-preprocess: error: ")


def test_a_command_that_fails_undisturbed_is_identical_never(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = script["Job"]("preprocess --bitext de-en=none.tsv --destdir out".split(), ["out"])
    monkeypatch.setitem(script["run_job"].__globals__["JOBS"], "preprocess", lambda folder: failing)
    with pytest.raises(SystemExit):
        script["main"](["preprocess"])
    assert capsys.readouterr().out.endswith("\nxrep-preprocess: 0 of 20 identical\n")


@pytest.mark.slow
def test_half_written_and_different_outputs_are_found(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "modules" / "xrep_cli").mkdir(parents=True)
    (tmp_path / "modules" / "xrep_cli" / "__init__.py").touch()
    (tmp_path / "modules" / "xrep_cli" / "slow.py").write_text(
        "import pathlib, sys, time\n"
        "out = pathlib.Path('out')\n"
        "out.write_text('half')\n"
        "time.sleep(0.5)\n"
        "out.write_text(sys.argv[1] if sys.argv[1] == 'same' else str(time.time_ns()))\n",
        encoding="utf-8",
    )
    start = script["kill_test"].__globals__["_start"]
    monkeypatch.setitem(start.__globals__, "__file__", str(tmp_path / "modules" / "scripts" / "x.py"))
    test = script["kill_test"]
    half = test(["slow", "same"], ["out"], 3, inputs=tmp_path / "inputs")
    assert len(half.problems) == 1 and half.problems[0].endswith("out is half-written")
    assert test(["slow", "same"], ["out"], 3, inputs=tmp_path / "inputs", resumes=True).problems == []
    other = test(["slow", "other"], ["out"], 3, inputs=tmp_path / "inputs", resumes=True)
    assert len(other.problems) == 1 and other.problems[0].endswith("out differs")
