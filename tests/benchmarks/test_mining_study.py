"""benchmarks/mining_study.py: LASER's rule is ours where both are the same, and the table has the figures of both."""

from __future__ import annotations

import importlib
import json
import runpy
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.retrieval.test_neighbours import vectors
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.retrieval.margins import MARGINS

ROOT = Path(__file__).parents[2]
X, Y = np.abs(vectors(60, 8, seed=1)), np.abs(vectors(45, 8, seed=2))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("mining_study")


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("retrieval", ["forward", "backward", "intersection", "max, one to one"])
def test_the_rule_of_laser_is_ours(script: ModuleType, margin: str, retrieval: str) -> None:
    ours, laser = (rule(X, Y, 4, margin, retrieval) for rule in (script.ours, script.laser))
    pairs = [list(zip(each.source.tolist(), each.target.tolist(), strict=True)) for each in (ours, laser)]
    if retrieval == "backward":  # of LASER's pairs with one source, ours has the best
        first = [pair for place, pair in enumerate(pairs[1]) if pair[0] not in {s for s, _ in pairs[1][:place]}]
        assert pairs[0] == first and len(first) < len(Y)
    else:
        assert pairs[0] == pairs[1]
        np.testing.assert_allclose(ours.score, laser.score, atol=2e-6)


def test_table(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make = runpy.run_path(str(ROOT / "scripts" / "mining_set.py"))["main"]
    sentences = sorted({target for _, target in sentence_pairs(300)})
    splits = {"training": sentences[::2], "test": sentences[1::2]}
    for name, some in splits.items():  # an encoder with random weights finds sentences of nearly the same words
        lines = "".join(f"{sentence} too\t{sentence}\n" for sentence in some)
        (tmp_path / f"{name}.tsv").write_text(lines, encoding="utf-8")
    shares = ["--removed", "0.5", "--removed-source", "0.25"]
    given = [f"{name}={tmp_path}/{name}.tsv" for name in splits]
    assert make(["--pair", "de-en", *shares, "--output", str(tmp_path / "set"), *given]) == 0
    gold = len(splits["test"]) - round(len(splits["test"]) / 2) - len(splits["test"]) // 4
    encoder = str(write_encoder(tmp_path / "encoder"))
    line = ["--path", encoder, "--data", str(tmp_path / "set"), "--neighbours", "3"]
    assert script.main([*line, "--json", str(tmp_path / "figures.json")]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| ")][2:]
    results = json.loads((tmp_path / "figures.json").read_text())["results"]
    assert len(rows) == len(results) == 15
    for row, result in zip(rows, results, strict=True):
        assert row.startswith(f"| {result['margin']} | {result['retrieval']} | {result['ours']['precision']:.1f} |")
        assert result["ours"]["gold"] == gold and result["ours"]["correct"] > 0
        if result["retrieval"] not in ("max", "backward"):
            assert result["laser"] == result["ours"] and result["differing"] == 0
    (tmp_path / "set" / "de-en.training.gold").unlink()
    assert script.main(line) == 2 and "de-en has only the splits test; give --langs" in capsys.readouterr().err
