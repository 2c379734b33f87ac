"""The benchmarks can be imported, take turns and write rows of ratios, of which tables are made."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_can_be_imported(name: str) -> None:
    assert module(name).__doc__


def test_contestants_take_turns_and_the_warm_up_is_not_measured() -> None:
    harness, order = module("harness"), list[str]()

    def timed(value: int) -> object:
        order.append("b")
        return harness.Taken(value)

    turns = harness.take_turns({"a": lambda _: order.append("a"), "b": timed}, [7, 8, 9], warm_up=1)
    assert "".join(order) == "abbaab" and len(turns.seconds["a"]) == 2
    assert turns.seconds["b"] == [8, 9] and turns.results["b"] == 9


def test_rows_are_ratios_of_rounds_and_the_table_has_their_range(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, path = module("results"), tmp_path / "results.csv"
    assert "thread" in results.machine()
    seconds = {"xrep": [1.0, 1.0, 3.0], "peer": [2.0, 2.5, 6.0]}  # both are disturbed together in the third round
    for machine, slower in (("first", 1), ("second", 1), ("second", 2)):
        monkeypatch.setattr(results, "machine", lambda machine=machine: machine)
        times = {"xrep": seconds["xrep"], "peer": [slower * each for each in seconds["peer"]]}
        (row,) = results.report("encode", "short", times, {"xrep": ["peer", "absent"]}, str(path))
        assert list(row.values())[-4:] == [
            2.0 * slower,
            2.0 * slower,
            2.5 * slower,
            3,
        ]
    assert len(results.latest(path)) == 2  # the last row of the second machine counts
    assert results.table(path)[2:] == ["| encode | xrep | peer | 2.00 to 4.00 |  |  |"]
    assert "encode, short: xrep beside peer: 2.00 (2.0 to 2.5)" in capsys.readouterr().out


def test_the_committed_rows_make_the_table_of_the_readme() -> None:
    assert "\n".join(module("results").table()) in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_training_is_measured(tmp_path: Path) -> None:
    lines = [f"this is the small sentence of number {number} here" for number in range(60)]
    (tmp_path / "en").write_text("\n".join(lines))
    (tmp_path / "de").write_text("\n".join(line.replace("this is", "das ist") for line in lines))
    words = ["--data", tmp_path / "de", tmp_path / "en", "--csv", tmp_path / "rows.csv", "--repeats", "1"]
    words += ["--text", "short", "--layers", "1", "--width", "64", "--pairs", "16", "--batch-size", "8"]
    line = [sys.executable, FOLDER / "train.py", *words]
    subprocess.run(line, check=True, env={**os.environ, "PYTHONPATH": str(FOLDER.parent), "XREP_HOME": str(tmp_path)})
    (row,) = module("results").latest(tmp_path / "rows.csv")
    assert row["beside"] == "plain loop" and float(row["ratio"]) > 0
