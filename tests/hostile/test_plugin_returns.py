"""Plugins whose methods return something else than their contract says: one line that names both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.encoders import write_encoder
from tests.support.runs import options
from xrep.registry import CRITERIA, EVALUATIONS
from xrep_cli import eval, train

CRITERION = """
from dataclasses import dataclass
import torch
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.registry import CRITERIA

@CRITERIA.register("odd")
class Odd(Criterion):
    @dataclass(kw_only=True)
    class Config:
        pass
    def __init__(self, config, model, text):
        super().__init__()
    def plan(self, batch, generator):
        return {plan}
    def forward(self, model, planned):
        total = model.encode_pair(planned.batch.source, planned.batch.target)[0].sum()
        return {loss}
"""
PLAN, LOSS = 'Planned(batch, {"a": len(batch)})', 'Loss({"a": Term(total)})'
CONTRACT = "; the docstring of xrep.criteria.criterion.Criterion has the contract"
RETURNED = {
    "a batch": ("batch", LOSS, f"Odd.plan returned a value of the type PairBatch, not Planned{CONTRACT}"),
    "nothing": (PLAN, "None", f"Odd.forward returned a value of the type NoneType, not Loss{CONTRACT}"),
    "a number": (PLAN, "total", f"Odd.forward returned a value of the type Tensor, not Loss{CONTRACT}"),
    "no terms": (PLAN, "Loss(total)", f"Odd.forward returned a value of the type Tensor, not dict{CONTRACT}"),
    "no term": (PLAN, 'Loss({"a": total})', f"Odd.forward returned a value of the type Tensor, not Term{CONTRACT}"),
    "a name": (
        PLAN,
        'Loss({"b": Term(total)})',
        "returned the term 'b', of which plan gave no size; plan gives the sizes of 'a'",
    ),
}
EVALUATION = """
from dataclasses import dataclass
from xrep.evaluation.evaluation import EncoderOptions, Evaluation
from xrep.registry import EVALUATIONS

@EVALUATIONS.register("odd")
class Odd(Evaluation):
    \"\"\"Measure nothing.\"\"\"
    @dataclass(kw_only=True)
    class Config(EncoderOptions):
        pass
    def read(self):
        pass
    def measure(self, encoder):
        return {"mean": 1.0}
"""


def plugin(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a plugin and return its name."""
    name = f"odd_{folder.name}".replace("-", "_")
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for registry in (CRITERIA, EVALUATIONS):
        monkeypatch.setattr(registry, "_targets", dict(registry._targets))
    return name


@pytest.mark.parametrize("case", RETURNED)
def test_a_criterion(
    case: str,
    data_directory: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan, loss, message = RETURNED[case]
    name = plugin(CRITERION.replace("{plan}", plan).replace("{loss}", loss), tmp_path, monkeypatch)
    line = options(criterion="odd", save_dir=tmp_path / "run", max_steps=1, plugin=name)
    assert train.main([str(data_directory), *line]) == 2
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith("xrep-train: error: ") and printed.endswith(message), printed


def test_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name = plugin(EVALUATION, tmp_path, monkeypatch)
    assert eval.main(["odd", "--plugin", name, "--path", str(write_encoder(tmp_path / "best"))]) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert "Odd.measure returned a value of the type dict, not Figures; the docstring of xrep.evaluation." in printed
