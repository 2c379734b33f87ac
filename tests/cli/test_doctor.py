"""``xrep-doctor``: what it tells of a healthy installation, and of one that is not."""

import importlib.metadata
import json

import pytest

import xrep
from tests.support.commands import Commands
from xrep_cli import doctor


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the computation, which one test does."""
    monkeypatch.setattr(doctor, "of_computation", lambda name: iter(()))


@pytest.mark.slow
def test_a_healthy_machine(cli: Commands) -> None:
    done = cli("doctor", "--json")
    found = json.loads(done.out)
    assert (done.code, found["problems"]) == (0, 0), found
    lines = {(each["section"], each["name"]): each for each in found["findings"]}
    sections = dict.fromkeys(section for section, _ in lines)
    assert list(sections)[:7] == ["Versions", "Extras", "Processor", "Memory", "GPUs", "Folders", "Plugins"]
    assert lines["Versions", "xrep"]["value"].startswith(xrep.__version__)
    assert lines["Versions", "torch"]["value"] == importlib.metadata.version("torch")
    for kernel in ("queue InfoNCE", "in-batch InfoNCE", "linear cross-entropy"):
        assert lines["Computation on cpu", kernel]["value"].startswith("differs from float64 by ")
    assert lines["Computation on cpu", "training"]["state"] == "ok"


@pytest.mark.usefixtures("quick")
def test_every_line_has_its_state(cli: Commands) -> None:
    done = cli("doctor")
    lines = [line for line in done.out.splitlines() if line.startswith(" ")]
    assert done.code == 0 and {line.split()[0] for line in lines} <= {"ok", "absent"}
    assert done.out.endswith("\nno problem\n") and f"  ok       xrep: {xrep.__version__} in " in done.out
    assert {*doctor.EXTRAS} <= {*(importlib.metadata.metadata("xrep").get_all("Provides-Extra") or [])}


def test_kernels_that_compute_something_else(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrep.kernels.self_check.kernel_errors", lambda device: {"queue InfoNCE": 0.5})
    done = cli("xrep", "doctor")
    assert done.code == 1 and done.out.endswith("\n1 problem\n")
    assert "  problem  queue InfoNCE: differs from float64 by 5.0e-01; report it with this output\n" in done.out


@pytest.mark.usefixtures("quick")
def test_problems_have_a_cure(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["absent-package>=2", "numpy<1"])
    monkeypatch.setattr(doctor, "LEAST", {"memory": 1e9, "disk": 2})
    done = cli("doctor")
    assert done.code == 1 and done.out.endswith("\n3 problems\n")
    assert "  problem  absent-package: not installed; pip install 'absent-package>=2'\n" in done.out
    assert "GB available; end other programs\n" in done.out and "; pip install 'numpy<1'\n" in done.out


@pytest.mark.usefixtures("quick")
def test_a_plugin_that_cannot_be_loaded(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("criterion.own", "absent_module:Own", "xrep.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    done = cli("doctor")
    assert done.code == 1
    assert "  problem  criterion.own: UserError: absent_module:Own cannot be loaded" in done.out


@pytest.mark.usefixtures("quick")
def test_an_error_ends_nothing_else(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "of_memory", lambda: 1 // 0)
    done = cli("doctor")
    assert "  problem  error: ZeroDivisionError: " in done.out and "Plugins" in done.out and done.code == 1
