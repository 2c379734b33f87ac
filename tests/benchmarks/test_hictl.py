"""benchmarks/hictl.py: its contestants compute what they should, and its figures are written."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of
from xrep.criteria.hictl import HiCTL
from xrep.data.batching import TextSpec
from xrep.models.dual_encoder import DualEncoder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 24}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("hictl")


def test_plain_and_passes_lack_what_they_should(script: ModuleType, text: TextSpec, make_batch) -> None:
    batch = make_batch(sentence_pairs(9))
    torch.manual_seed(0)
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    model = DualEncoder(DualEncoder.Config(towers="shared", normalize=False, **SIZES, **rates), text)
    given = HiCTL.Config(temperature=0.05, hard_negatives=False)
    losses, gradients = {}, {}
    for name, kind in (script.CRITERIA | {"expected": HiCTL}).items():
        torch.manual_seed(1)
        criterion = kind(given, model, text)
        torch.manual_seed(1)
        losses[name] = {term: value.sum for term, value in loss_of(criterion, model, batch).terms.items()}
        (gradients[name],) = torch.autograd.grad(losses[name]["sentence"], model.encoders["shared"].norm.weight)
    torch.testing.assert_close(losses["plain"], losses["expected"])
    torch.testing.assert_close(gradients["plain"], gradients["expected"], rtol=1e-3, atol=1e-3)
    assert {*losses["passes"]} == {"tlm", "sentence"} and gradients["passes"].any()
    torch.testing.assert_close(losses["passes"]["tlm"], losses["expected"]["tlm"])


def test_figures(script: ModuleType, tmp_path: Path, data_directory: Path) -> None:
    sizes = [word for name, size in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(size))]
    line = [*sizes, "--steps", "2", "--batch-size", "8", "--device", "cpu", "--json", str(tmp_path / "figures.json")]
    assert script.main([*line, "--vocabulary-size", "90", "--length", "9"]) == 0
    assert script.main([*line, "--data", str(data_directory)]) == 0
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["hictl over passes"] == pytest.approx(found["hictl"] / found["passes"]) and min(found.values()) > 0
