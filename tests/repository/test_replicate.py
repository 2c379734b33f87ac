"""scripts/replicate: the effects' files, their results and tables, and a small effect from end to end."""

import math
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.config import runs_of
from xrep.config.values import load_yaml

ROOT = Path(__file__).parents[2]
EFFECTS = sorted(ROOT.glob("examples/*/effects/*.yaml"))

EFFECT = """\
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
  copied: {command: "cp -r {data}/encoder {out}"}
grid: {optimizer.lr: [1e-2]}
evaluations:
  tatoeba: {run: "tatoeba --data {data}/tatoeba", figures: {Tatoeba: mean of 1}}
random_weights: trained
claims: [{better: trained, worse: given, figure: Tatoeba, says: More steps find more, paper: "+9 Tatoeba"}]
"""


@pytest.fixture(scope="module")
def replicate() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        import replicate  # pyright: ignore[reportMissingImports]

        sys.modules.pop("replicate")
        return replicate


@pytest.mark.parametrize("path", EFFECTS, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_every_arm_can_be_trained_and_every_claim_compared(path: Path, replicate: ModuleType) -> None:
    effect = load_yaml(path)
    for setting in effect.get("settings", [""]):
        for arm, own in effect["arms"].items():
            if not {"path", "command"} & {*(own or {})}:
                layers = replicate.layers_of(effect, setting, arm)
                trainer = runs_of([(str(path), layer) for layer in layers])[0].configs["trainer"]
                assert (trainer.max_steps is None) != (trainer.max_minutes is None)
    results = replicate.read_table(path.parents[1] / "results.csv")
    if path.stem not in {row["effect"] for row in results}:
        pytest.skip("described, but not measured yet")
    for claim in effect["claims"]:
        compared = replicate.table({path.stem: {**effect, "claims": [claim]}}, results, everything=True).count("\n") - 2
        assert compared == (1 if "setting" in claim else len(effect.get("settings", [""])))


@pytest.mark.parametrize("paper", sorted({path.parents[1].name for path in EFFECTS}))
def test_a_readme_has_the_table_of_its_results(
    paper: str, replicate: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replicate.main([paper, "--table"]) == 0
    table = capsys.readouterr().out
    assert table.count("\n") - 2 <= 8
    assert table in (ROOT / "examples" / paper / "README.md").read_text(encoding="utf-8")


def test_the_interval_is_that_of_a_paired_t_test(replicate: ModuleType) -> None:
    better, worse = {"1": 60.0, "2": 40.0, "3": 58.0}, {"1": 58.0, "2": 39.0, "3": 55.0}
    gain, half, count = replicate.compare(better, worse)  # differences 2, 1 and 3: 4.303 / sqrt(3) times 1
    assert (gain, count) == (2.0, 3) and half == pytest.approx(4.302653 / math.sqrt(3))
    assert replicate.compare(better, {"0": 50.0})[::2] == (pytest.approx(8 / 3), 3)
    assert replicate.compare(better, {"2": 50.0}) == (-10.0, math.inf, 1)
    assert replicate.compare(better, {})[2] == 0


@pytest.mark.nightly
def test_an_effect_from_end_to_end(
    tmp_path: Path, replicate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    effects, data = tmp_path / "examples" / "toy" / "effects", tmp_path / "my data"
    effects.mkdir(parents=True)
    (effects / "steps.yaml").write_text(EFFECT, encoding="utf-8")
    monkeypatch.setattr(replicate, "REPOSITORY", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (data / "tatoeba").mkdir(parents=True)
    write_encoder(data / "encoder")
    for column, (code, name) in enumerate((("de", "deu"), ("en", "eng"))):
        lines = [pair[column] + "\n" for pair in sentence_pairs(320)]
        (data / f"text.{code}").write_text("".join(lines[:300]), encoding="utf-8")
        (data / "tatoeba" / f"tatoeba.deu-eng.{name}").write_text("".join(lines[300:]), encoding="utf-8")
    command = ["toy", "--data", str(data), "--seeds", "2"]
    assert replicate.main(command) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    assert "| More steps find more, long | +9 Tatoeba | +" in printed.out and " Tatoeba | " in printed.out
    results = tmp_path / "examples" / "toy" / "results.csv"
    rows = replicate.read_table(results)
    assert [row["arm"] for row in rows] == ["trained", *["random weights"] * 3, "trained", "given", "copied", "copied"]
    assert {row["chosen"] for row in rows[:5:4]} == {"optimizer.lr=0.01"} and rows[0]["steps"] == "30"
    before = results.read_bytes()
    assert replicate.main(command) == 0  # nothing is trained or measured again
    again = capsys.readouterr()
    assert again.out == printed.out and results.read_bytes() == before and "xrep-eval" not in again.err
