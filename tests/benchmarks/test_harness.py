"""benchmarks/harness.py: the order of turns, what is measured, and the file of figures."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest

from xrep.criteria.translation_ranking import TranslationRanking
from xrep.models.dual_encoder import DualEncoder

SCRIPTS = [path.stem for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py")]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("harness")


def test_contestants_take_turns_and_the_warm_up_is_not_measured(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[tuple[str, int]] = []
    contestants = {name: lambda value, name=name: order.append((name, value)) or f"{name}{value}" for name in "abc"}
    squares = (float(number**2) for number in itertools.count())
    clock = lambda: next(squares)  # noqa: E731
    turns = harness.take_turns(contestants, [7, 8, 9], warm_up=1, clock=clock, verbose=True)
    assert "".join(name for name, _ in order) == "abcbcacab" and [value for _, value in order[::3]] == [7, 8, 9]
    # The clock gives 0, 1, 4, 9, ...: the k-th measurement from 0 takes (2 k + 1) ** 2 - (2 k) ** 2 = 4 k + 1 seconds.
    assert turns.seconds == {"a": [21.0, 29.0], "b": [13.0, 33.0], "c": [17.0, 25.0]}
    assert turns.medians() == {"a": 25.0, "b": 23.0, "c": 21.0}
    assert turns.results == {"a": "a9", "b": "b9", "c": "c9"}
    assert capsys.readouterr().err.splitlines()[-1] == "round 2: b 33.00 s"


def test_figures_are_written_if_a_file_is_named(harness: ModuleType, tmp_path: Path) -> None:
    harness.write_json(None, {})
    harness.write_json(str(tmp_path / "figures.json"), {"ratio": 2})
    assert json.loads((tmp_path / "figures.json").read_text()) == {"ratio": 2}


def test_a_step_trains(harness: ModuleType, text, make_batch) -> None:
    sizes = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 24, "max_positions": 48}
    model = DualEncoder(DualEncoder.Config(towers="shared", **sizes), text)
    engine = harness.make_engine(model, TranslationRanking(TranslationRanking.Config(), model, text), "cpu", lr=1e-2)
    before = model.encoders["shared"].norm.weight.clone()
    harness.run_step(engine, make_batch([("der alte Mann", "the old man"), ("das Haus", "the house")]))
    assert not before.equal(model.encoders["shared"].norm.weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_can_be_imported(harness: ModuleType, name: str) -> None:
    assert importlib.import_module(name).__doc__
