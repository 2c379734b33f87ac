"""benchmarks/dap_cost.py: operations are as torch counts them, and training steps take turns."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.criteria.test_dap import task_of
from tests.support.planning import plan
from xrep.criteria.dap import DAP
from xrep.kernels.paths import use_path
from xrep.kernels.precision import default_float32_products
from xrep.models.dual_encoder import DualEncoder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = ["--layers", "3", "--hidden-size", "32", "--heads", "4", "--feedforward-size", "48", "--vocabulary-size", "90"]
LENGTH = 7


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("dap_cost")


@pytest.mark.parametrize(("layers", "ratio", "words"), [(2, 1.0, None), (3, 0.5, None), (1, 1.0, 40)])
def test_operations_are_those_that_torch_counts(
    script: ModuleType, layers: int, ratio: float, words: int | None
) -> None:
    options = script.parser().parse_args([*SIZES, "--length", str(LENGTH), "--batch-size", "5"])
    text, batches = script.text_of(options)
    sizes = {"layers": 3, "hidden_size": 32, "heads": 4, "feedforward_size": 48, "max_positions": 20}
    model = DualEncoder(DualEncoder.Config(towers="shared", **sizes), text)
    chosen = "target-language" if words else "all"
    config = DAP.Config(rtl_layers=layers, reconstruction_ratio=ratio, rtl_vocabulary=chosen)
    dap = DAP(config, model, text)
    batch = next(batches)
    if words:
        batch.target.tokens.clamp_(max=words + 2)
        dap.prepare(task_of([("xx", "en")], {"en": list(range(3, words + 3))}))
    planned = plan(dap, batch)
    counter = FlopCounterMode(display=False)
    with use_path("reference"), default_float32_products(), sdpa_kernel(SDPBackend.MATH):
        with counter:
            dap.vectors(model, planned)
        encoder = counter.get_total_flops()
        with counter:
            dap.encode(model, planned)
        both = counter.get_total_flops()
    full = np.full(5, LENGTH)
    assert script.operations(options, full, full) == encoder
    # The head's input of 60 tokens is filled up to 64 with copies, except in attention.
    packed = script.operations(options, full, full, layers=layers, ratio=ratio, words=words)
    assert packed + 2 * layers * 4 * (4 * 32**2 + 2 * 32 * 48) == both


def test_by_hand(script: ModuleType) -> None:
    # A token needs 4 maps of 2 x 2 and 2 of 2 x 3; a pair of tokens 2 scores and 2 averages. Each is two operations.
    assert script.transformer_flops(np.array([3]), layers=1, hidden_size=2, feedforward_size=3) == 2 * (3 * 28 + 9 * 4)
    assert script.transformer_flops(np.array([3, 1]), layers=2, hidden_size=2, feedforward_size=3) == 4 * (
        4 * 28 + 10 * 4
    )
    assert script.vocabulary_flops(5, hidden_size=2, words=7) == 140


def test_table_6_at_the_size_of_the_paper(script: ModuleType) -> None:
    counted = dict(script.counted(script.parser().parse_args(["--target-words", "79000"])))
    assert counted["TR"] == pytest.approx(11.0e9, rel=0.01)
    assert counted["TR+TLM, vocabulary at every token"] == pytest.approx(33.7e9, rel=0.005)
    assert counted["DAP, K = 2, 79,000 subwords"] == pytest.approx(16.5e9, rel=0.005)
    rising = [counted[f"DAP, K = {k}"] for k in (1, 2, 3, 4)]
    assert np.allclose(np.diff(rising), rising[1] - rising[0]) and rising[0] > counted["TR"]


@pytest.mark.parametrize("data", [False, True])
def test_steps_take_turns(
    script: ModuleType, data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture, data: bool
) -> None:
    given = ["--data", str(data_directory)] if data else []
    report = tmp_path / "cost.json"
    torch.manual_seed(0)
    line = [*SIZES, "--length", "20", "--batch-size", "4", "--steps", "2", "--device", "cpu", "--json", str(report)]
    assert script.main([*line, *given]) == 0
    found = json.loads(report.read_text())
    base = found["operations"]["TR"]
    for name, counted in (("TR", "TR"), ("TR+TLM", "TR+TLM, vocabulary at 15% of the tokens"), ("DAP", "DAP, K = 2")):
        measured = found["measured"][name]
        ratio = measured["ms a pair"] / found["measured"]["TR"]["ms a pair"]
        assert measured["time ratio"] == pytest.approx(ratio)
        assert measured["over"] == pytest.approx(ratio / measured["operations ratio"])
        assert data or measured["operations ratio"] == pytest.approx(found["operations"][counted] / base, rel=0.01)
    shown = capsys.readouterr().out
    assert "| TR |" in shown and "2 pairs" not in shown and "training steps of 4 pairs on cpu" in shown
