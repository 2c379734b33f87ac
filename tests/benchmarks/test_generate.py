"""benchmarks/generate.py: the figures of all that it compares are written."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

SIZES = "--layers 1 --decoder-layers 1 --hidden-size 64 --words 60 --beam 2 --batch 3 --tokens 3 --repeats 1"


def test_both_comparisons_of_the_semantic_bias_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    file = tmp_path / "figures.json"
    importlib.import_module("generate").main([*SIZES.split(), "--semantic-bias", "--json", str(file)])
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    names = ["plain", "semantic bias", "plain, training", "semantic bias, training"]
    assert [row["name"] for row in rows] == names
    for row, line in zip(rows, capsys.readouterr().out.splitlines(), strict=True):
        assert line.startswith(f"{row['name']:30} {row['speed']:5.2f}x")
