"""scripts/replicate: the effects' files, the table and the tests, and a small effect from end to end."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.config import runs_of

ROOT = Path(__file__).parents[2]
EFFECTS = sorted(ROOT.glob("examples/*/effects/*.yaml"))
RESULTS = sorted(ROOT.glob("examples/*/effects/*.json"))

EFFECT = """\
title: More steps find more translations
paper: table 1
prepare:
  pairs: xrep-preprocess --bitext de-en={data}/text.de,{data}/text.en --valid-size 20 --vocab-size 120 --destdir {out}
options:
  task: {name: bitext, data: "{pairs}", batch_size: 20, max_length: 64}
  model: {towers: shared, layers: 1, hidden_size: 16, heads: 2, feedforward_size: 16, dropout: 0, max_positions: 64}
  criterion: translation_ranking
  trainer: {max_steps: 2, validate_every: 0}
settings:
  long: {trainer: {max_steps: 30}}
arms:
  trained: {options: {lr_scheduler: {warmup_steps: 0}}}
  given: {path: "{data}/encoder"}
grid: {optimizer.lr: [1e-2]}
evaluations:
  tatoeba: {run: "tatoeba --data {data}/tatoeba", figures: {Tatoeba: mean of 1}}
published: {trained: 90}
random_weights: trained
claims: [{better: trained, worse: given, figure: Tatoeba}]
"""


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Return the module of the command and that of its results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        import replicate  # pyright: ignore[reportMissingImports]
        import replicate_results  # pyright: ignore[reportMissingImports]

        yield replicate, replicate_results
        for name in ("replicate", "replicate_results"):
            sys.modules.pop(name)


@pytest.fixture
def command(scripts: Any) -> ModuleType:
    return scripts[0]


@pytest.fixture
def tables(scripts: Any) -> ModuleType:
    return scripts[1]


@pytest.mark.parametrize("path", EFFECTS, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_every_arm_of_an_effect_can_be_trained(path: Path, command: ModuleType) -> None:
    effect = command.read_effect(path)
    assert {*effect.get("published", {})} <= {*effect["arms"]}
    for setting in effect.get("settings", {"": {}}).values():
        for arm in effect["arms"].values():
            if not {"path", "command"} & {*(arm or {})}:
                layers = [effect.get("options", {}), setting or {}, (arm or {}).get("options", {})]
                run = runs_of([(str(path), layer) for layer in layers])[0]
                trainer = run.configs["trainer"]
                assert (trainer.max_steps is None) != (trainer.max_minutes is None)
                assert (arm or {}).get("grid", effect.get("grid"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_the_tables_of_a_readme_are_those_of_the_results(path: Path, tables: ModuleType) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    readme = (path.parents[1] / "README.md").read_text(encoding="utf-8")
    assert tables.to_markdown(found) in readme


def by_seed(draw: np.random.Generator, mean: float, spread: float, seeds: int) -> dict[int, tuple[float, np.ndarray]]:
    """Return figures of seeds around a mean, and their values on resampled examples, all moved by the same examples."""
    examples = np.random.default_rng(9).normal(0, 3, 1000)
    values = draw.normal(mean, spread, seeds)
    return {seed: (value, value + examples) for seed, value in enumerate(values, start=1)}


@pytest.mark.parametrize(("gain", "verdict"), [(2.0, "shows"), (-2.0, "opposite"), (0.0, "does not show")])
def test_the_verdict_is_that_of_the_paired_interval(tables: ModuleType, gain: float, verdict: str) -> None:
    draw = np.random.default_rng(1)
    compared = tables.compare(by_seed(draw, 50 + gain, 0.5, 6), by_seed(draw, 50, 0.5, 6))
    low, high = compared["interval"]
    assert compared["verdict"] == verdict and low < compared["difference"] < high and compared["seeds"] == 6
    assert high - low < 2  # the examples, which move both arms by 3 points, cancel out


def test_seeds_that_disagree_decide_nothing(tables: ModuleType) -> None:
    better = {seed: (value, np.full(1000, value)) for seed, value in enumerate((60.0, 40.0, 58.0), start=1)}
    compared = tables.compare(better, {0: (50.0, np.full(1000, 50.0))})
    assert compared["verdict"] == "does not show" and compared["interval"] == [-10.0, 10.0]
    assert compared["difference"] == pytest.approx(8 / 3) and compared["seeds"] == 3
    assert tables.compare(better, {}) is None and tables.compare({1: better[1]}, {2: better[2]}) is None


def write_effect(folder: Path, text: str = EFFECT) -> Path:
    path = folder / "examples" / "toy" / "effects" / "steps.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def toy(tmp_path: Path, command: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments of a small effect whose data is in ``data``."""
    write_effect(tmp_path)
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "my data"
    (data / "tatoeba").mkdir(parents=True)
    write_encoder(data / "encoder")
    for column, (code, name) in enumerate((("de", "deu"), ("en", "eng"))):
        lines = [pair[column] + "\n" for pair in sentence_pairs(320)]
        (data / f"text.{code}").write_text("".join(lines[:300]), encoding="utf-8")
        (data / "tatoeba" / f"tatoeba.deu-eng.{name}").write_text("".join(lines[300:]), encoding="utf-8")
    return ["toy", "--data", str(data), "--seeds", "1", "--output", "out put"]


@pytest.mark.nightly
def test_an_effect_from_end_to_end(toy: list[str], command: ModuleType, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    assert command.main(toy) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    folder = Path("out put/toy")
    found = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
    trained, given = found["rows"]
    assert trained["chosen"] == {"optimizer.lr": "0.01"} and trained["steps"] == 30 and given["steps"] is None
    random = found["random_weights"]["long"]["Tatoeba"]
    assert len(random["by_seed"]) == 3 and trained["figures"]["Tatoeba"]["mean"] > random["mean"]
    (claim,) = found["claims"]
    assert claim["verdict"] == "shows" and claim["difference"] > 0 and found["is_complete"]
    table = (folder / "steps.md").read_text(encoding="utf-8")
    assert table in printed.out and "| long | trained | 0.01 | 30 |" in table and "| 90 |" in table
    assert (folder / "steps.png").read_bytes().startswith(b"\x89PNG")
    assert command.main(toy) == 0 and capsys.readouterr().out == printed.out  # nothing is trained or measured again
    written = list(folder.glob("steps/long/trained/*.measured/tatoeba.json"))
    assert len(written) == 1 and len(list(folder.glob("steps/long/trained/lr0.01-seed1/best"))) == 1
