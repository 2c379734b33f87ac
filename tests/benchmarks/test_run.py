"""benchmarks/run.py: ratios of rounds, the page, who is absent and what fails."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
PAGE = FOLDER.parent / "docs" / "benchmarks.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return importlib.import_module("run")


@pytest.mark.slow
def test_table_page_and_json_agree(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "figures.json"), "--page", str(tmp_path / "page.md")]
    assert script.main(["--quick", "--only", "dap_cost", *files]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    compared = [(row["benchmark"], row["ours"], row["beside"], row["rounds"]) for row in figures["rows"]]
    assert compared == [("dap_cost", "DAP", "TR", 15), ("dap_cost", "DAP", "TR+TLM", 15)]
    assert figures["machine"]["threads"] == 1 and figures["failed"] == {} and figures["absent"] == []
    text, printed = (tmp_path / "page.md").read_text(), capfd.readouterr().out
    assert text == script.page(figures)
    assert "```sh\npython benchmarks/run.py --quick --only dap_cost\n```" in text
    for row in figures["rows"]:
        (line,) = [line for line in text.splitlines() if f"| {row['beside']} " in line]
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[4] == f"{row['ratio']:.2f}" and ("unsteady" in cells[5]) != row["steady"] and line in printed


def test_the_page_in_the_documentation_is_of_this_form(script: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [line.split("**")[1] for line in text.splitlines() if line.startswith("- **")]
    assert names == [name for name in script.BENCHMARKS if name in names] and "python benchmarks/run.py" in text
    assert all((FOLDER / f"{name}.py").is_file() for name in script.BENCHMARKS)
    here = {"processor": "", "flags": [], "threads": 1, "torch": "", "python": ""}
    nothing = {"rows": [], "absent": [], "failed": {}, "benchmarks": [], "command": "", "date": "", "machine": here}
    _, about, *_, head, _ = script.page({**nothing, "quick": True}).split("\n\n")
    assert f"\n\n{about}\n\n" in text
    columns = [cell.strip() for cell in head.splitlines()[0].split("|")]
    assert columns in [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]


def test_the_readme_names_every_script() -> None:
    rows = re.findall(r"^\| `(\w+\.py)` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted({path.name for path in FOLDER.glob("*.py")} - {"harness.py", "run.py"})


def test_a_ratio_is_the_median_of_the_rounds(script: ModuleType) -> None:
    slow_machine = [1.0, 1.0, 3.0, 1.0, 1.0]  # ours and theirs are disturbed together in the third round
    steady = script.ratio(slow_machine, [2.0, 2.1, 6.0, 1.9, 2.0])
    assert steady["ratio"] == 2.0 and steady["spread"] == pytest.approx(0.0) and steady["steady"]
    assert not script.ratio(slow_machine, [2.0, 4.0, 6.0, 1.0, 3.0])["steady"]
    assert script.ratio([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])["spread"] == pytest.approx(0.5)
    assert script.ratio([2.0], [1.0]) == {"ratio": 0.5, "spread": None, "rounds": 1, "steady": False}


def test_which_contestants_are_compared(script: ModuleType) -> None:
    names = ["sentence-transformers", "xrep, float32", "xrep, bfloat16", "OpenVINO, float32", "OpenVINO, bfloat16"]
    contest = {"title": "", "seconds": {name: [1.0 + place] * 3 for place, name in enumerate(names)}}
    found = {(row["ours"], row["beside"]): row["ratio"] for row in script.ratios("encode", contest)}
    assert found == {
        ("xrep, float32", "sentence-transformers"): 1 / 2,
        ("xrep, float32", "OpenVINO, float32"): 4 / 2,
        ("xrep, bfloat16", "sentence-transformers"): 1 / 3,
        ("xrep, bfloat16", "OpenVINO, bfloat16"): 5 / 3,
    }


def test_who_is_absent_and_what_fails(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(script.BENCHMARKS, "encode", replace(script.BENCHMARKS["encode"], needs=("no_such_package",)))
    monkeypatch.setitem(script.BENCHMARKS, "mining", replace(script.BENCHMARKS["mining"], quick="--sizes many"))
    files = ["--json", str(tmp_path / "figures.json"), "--page", str(tmp_path / "page.md")]
    assert script.main(["--quick", "--only", "encode", *files]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["rows"] == []
    assert "\n- Absent from encode: encode (no_such_package is not installed).\n" in (tmp_path / "page.md").read_text()
    capfd.readouterr()
    assert script.main(["--quick", "--only", "mining", *files]) == 2
    assert json.loads((tmp_path / "figures.json").read_text())["failed"] == {"mining": 2}
    output = capfd.readouterr()
    assert "- mining failed with exit code 2." in output.out
    assert output.err.endswith("error: failed: mining; see the messages above\n")


def test_a_page_that_cannot_be_written_is_refused_at_once(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--quick", "--page", str(tmp_path / "absent" / "page.md")]) == 2
    assert capsys.readouterr().err.endswith("absent: no such folder; make it first, or write elsewhere\n")
    with pytest.raises(SystemExit):
        script.main(["--only", "unknown"])
