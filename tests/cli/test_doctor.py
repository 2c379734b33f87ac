"""``xrep-doctor``: what it tells of a healthy installation, and of one that is not."""

import importlib.metadata
import json

import pytest

import xrep
from tests.support.commands import Commands
from xrep_cli import diagnosis
from xrep_cli.diagnosis import Finding


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the computation, which one test does."""
    for part in ("of_kernels", "of_training"):
        monkeypatch.setattr(diagnosis, part, lambda device: iter(()))


@pytest.mark.slow
def test_a_healthy_machine(cli: Commands) -> None:
    done = cli("doctor", "--json")
    found = json.loads(done.out)
    assert (done.code, found["problems"]) == (0, 0), found
    rows = {(each["section"], each["name"]): each for each in found["findings"]}
    sections = dict.fromkeys(section for section, _ in rows)
    assert list(sections)[:6] == ["Versions", "Extras", "Processor", "Space", "GPUs", "Plugins"]
    assert rows["Versions", "xrep"]["value"].startswith(xrep.__version__)
    assert rows["Versions", "torch"]["value"] == importlib.metadata.version("torch")
    for kernel in ("queue InfoNCE", "in-batch InfoNCE", "linear cross-entropy"):
        assert rows["Kernels on cpu", kernel]["value"].startswith("differs from float64 by ")
    assert rows["Training on cpu", "training"]["state"] == "ok"


@pytest.mark.usefixtures("quick")
def test_every_line_has_its_state(cli: Commands) -> None:
    done = cli("doctor")
    *lines, last = done.out.splitlines()
    assert done.code == 0 and {line.split()[0] for line in lines} <= {"ok", "absent"} and last == "problems: 0"
    assert lines[0].startswith(f"ok       Versions: xrep: {xrep.__version__} in ")
    assert {*diagnosis.EXTRAS} <= {*(importlib.metadata.metadata("xrep").get_all("Provides-Extra") or [])}


def test_a_kernel_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    real = diagnosis.queue_infonce
    monkeypatch.setattr(diagnosis, "queue_infonce", lambda x, *rest: real(x.sin() if x.itemsize == 4 else x, *rest))
    states = {row.name: row.state for row in diagnosis.of_kernels("cpu")}
    assert states == {"queue InfoNCE": "problem", "in-batch InfoNCE": "ok", "linear cross-entropy": "ok"}


@pytest.mark.usefixtures("quick")
def test_problems_have_a_cure(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("criterion.own", "absent_module:Own", "xrep.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["absent-package>=2", "numpy<1"])
    monkeypatch.setattr(diagnosis, "machine_memory", lambda: 1e9)
    done = cli("xrep", "doctor")
    assert done.code == 1 and done.out.endswith("\nproblems: 4\n")
    assert "\nproblem  Versions: absent-package: not installed; pip install 'absent-package>=2'\n" in done.out
    assert "1.0 GB available; end other programs\n" in done.out and "; pip install 'numpy<1'\n" in done.out
    assert '\nproblem  Plugins: criterion.own: UserError("absent_module:Own cannot be loaded' in done.out


@pytest.mark.usefixtures("quick")
def test_an_error_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "of_space", lambda: 1 // 0)
    found = dict(diagnosis.rows())
    error = "ZeroDivisionError('integer division or modulo by zero')"
    assert found["Space"] == Finding("problem", "error", error, diagnosis.REPORT) and "Plugins" in found
