"""The page about a GPU is written without one: on the CPU, and its sections on the emulated device."""

import importlib
import math
import os
from argparse import Namespace
from pathlib import Path

import pytest

from tests.cuda.table import absence, run
from tests.support.once import VARIABLE
from tests.support.programs import PATIENCE

FOLDER = Path(__file__).parents[2] / "benchmarks"
LOSSES = ["queue", "inbatch", "vocabulary"]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER}{os.pathsep}{FOLDER.parent}")


@pytest.mark.parametrize("case", LOSSES)
def test_contestants_of_a_loss_agree(case: str) -> None:
    losses = importlib.import_module("losses")
    contest = losses.make(case, "tiny", "cpu")
    found = losses.contestants(contest)
    (ours, *gradients), (theirs, *others) = (found[name](None) for name in ("ours", "torch"))
    assert (ours - theirs).abs().max() < 1e-4
    for mine, other in zip(gradients[0], others[0], strict=True):
        assert (mine - other).abs().max() < 1e-3 * other.abs().max()
    products = found[losses.PRODUCTS](None)[1]
    assert [each.shape for each in products] == [side.shape for side in contest.sides[: contest.products - 1]]


def test_what_has_no_time_left_is_a_line_of_the_page(tmp_path: Path) -> None:
    page, gpu = tmp_path / "cpu.md", importlib.import_module("gpu")
    assert gpu.main(["--small", "--device", "cpu", "--minutes", "0", "--page", str(page)]) == 0
    assert page.read_text().count("\n- skipped: no time was left\n") == len(gpu.SECTIONS)


def test_failures_are_lines_of_the_page(tmp_path: Path) -> None:
    gpu = importlib.import_module("gpu")
    (failure,) = gpu.apart("mine", Namespace(work=tmp_path, device="nowhere", small=True), 60)
    assert failure.startswith("- failed: ") and "nowhere" in failure
    row = gpu.line_of(("1 x 2 x 3, ours", "ms", 1234.5, math.nan))
    written = gpu.page({"device": "a card"}, {"queue": [row, "", failure]})
    assert "| 1 x 2 x 3, ours | ms | 1,234 | - |\n\n- failed" in written
    assert "- device: a card" in written and "A modelled figure is" in written
    found = gpu.record({"device": "a card"}, {"queue": ["", "", row, failure]})
    expected = {"section": "queue", "what": "1 x 2 x 3, ours", "unit": "ms", "measured": 1234, "modelled": None}
    assert found == {"device": "a card", "rows": [expected], "notes": {"queue": [failure]}}


@pytest.mark.nightly
@pytest.mark.timeout(4 * PATIENCE)
def test_every_section_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)  # the tests that it runs make and remove a folder of their own
    page, gpu = tmp_path / "cpu.md", importlib.import_module("gpu")
    assert gpu.main(["--small", "--device", "cpu", "--minutes", "15", "--page", str(page)]) == 0
    written = page.read_text()
    assert "- failed" not in written
    assert written.count("| what |") + written.count("- stopped") >= len(gpu.SECTIONS)


@pytest.mark.nightly
@pytest.mark.skipif(absence() is not None, reason=absence() or "")
@pytest.mark.timeout(4 * PATIENCE)
def test_sections_run_on_the_emulated_device(tmp_path: Path) -> None:
    names = [*LOSSES, "step-256", "mine"]
    line = ["--device", "cuda", "--small", "--work", str(tmp_path)]
    (printed,) = run([["plain:gpu", *line, "--section", name] for name in names], tmp_path)
    rows = [row.split(" | ") for row in printed.splitlines() if row.startswith("| ")]
    assert len(rows) >= 2 * len(names) and all(row[2] != "-" for row in rows)


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [("NVIDIA H100 80GB HBM3", 3.35e12), ("NVIDIA H100 PCIe", 2e12), ("NVIDIA H200", 4.8e12), ("NVIDIA L40S", 0.86e12)],
)
def test_the_peaks_are_those_of_the_card(name: str, bandwidth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device=None: name)
    gpu = importlib.import_module("gpu")
    assert gpu.peaks(Namespace(device="cuda"))[2] == pytest.approx(bandwidth)
    assert all(map(math.isnan, gpu.peaks(Namespace(device="cpu"))))
