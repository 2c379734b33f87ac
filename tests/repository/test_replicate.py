"""scripts/replicate: the effects' files, their results and tables, and a small effect from end to end."""

import datetime
import importlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import t as student

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.config import runs_of
from xrep.config.values import load_yaml
from xrep.errors import UserError

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
headline: {better: trained, worse: given, figure: Tatoeba, says: More steps find more, paper: "+9 Tatoeba", gain: 9}
claims: [{better: trained, worse: copied, figure: Tatoeba, says: the same}]
"""


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield
        for name in ("replicate", "claims"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def replicate(scripts: None) -> ModuleType:
    return importlib.import_module("replicate")


@pytest.fixture(scope="module")
def claims(scripts: None) -> ModuleType:
    return importlib.import_module("claims")


@pytest.mark.parametrize("path", EFFECTS, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_every_arm_can_be_trained_and_every_claim_compared(
    path: Path, replicate: ModuleType, claims: ModuleType
) -> None:
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
    figures, count = claims.figures_of(results), len(effect.get("settings", [""]))
    compared = [claim for claim, _, _ in claims.compared(path.stem, effect, figures)]
    for claim in (effect["headline"], *effect["claims"]):
        assert compared.count(claim) == (1 if "setting" in claim else count)


@pytest.mark.parametrize("paper", sorted({path.parents[1].name for path in EFFECTS}))
def test_a_readme_has_the_table_and_the_picture_of_its_results(
    paper: str, replicate: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replicate.main([paper, "--table"]) == 0
    table = capsys.readouterr().out
    assert table.count("\n") - 2 <= 8
    text = (ROOT / "examples" / paper / "README.md").read_text(encoding="utf-8")
    assert table in text and "(effects.svg)" in text
    assert replicate.main([paper, "--plot"]) == 0
    assert capsys.readouterr().out == (ROOT / "examples" / paper / "effects.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EFFECTS, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_an_effect_has_one_headline_claim_with_its_date(path: Path) -> None:
    """It names one figure in one setting, and one that is not `after_runs` was written before any run was measured."""
    effect = load_yaml(path)
    headline = effect["headline"]
    assert datetime.date.fromisoformat(headline["written"]) and "says" in headline
    assert headline.get("setting", "") in effect.get("settings", [""])
    assert "gain" not in headline or f"+{headline['gain']}" in headline["paper"]
    for claim in effect["claims"]:
        assert not {"gain", "written", "after_runs"} & {*claim}
        same = [key for key in ("better", "worse", "figure", "setting") if claim.get(key) != headline.get(key)]
        assert same, "the headline claim stands twice"
    measured = re.search(r"measured\s(?:#\s)?on\s(?:#\s)?(\S{10})", path.read_text(encoding="utf-8"))
    if measured and measured[1] < headline["written"]:
        assert headline.get("after_runs")


def test_a_comparison_is_a_paired_t_test(claims: ModuleType) -> None:
    better, worse = {"1": 60.0, "2": 40.0, "3": 58.0}, {"1": 58.0, "2": 39.0, "3": 55.0}
    found = claims.compare(better, worse)  # differences 2, 1 and 3: 4.303 / sqrt(3) times 1
    assert (found.gain, found.count) == (2.0, 3) and found.half == pytest.approx(4.302653 / math.sqrt(3))
    assert found.statistic == pytest.approx(2 * math.sqrt(3)) and found.probability == 1.0  # three seeds are too few
    single = claims.compare(better, {"0": 50.0})
    assert (single.gain, single.count) == (pytest.approx(8 / 3), 3)
    one = claims.compare(better, {"2": 50.0})
    assert (one.gain, one.half, one.count) == (-10.0, math.inf, 1)
    assert claims.compare(better, {}).count == 0


def accuracies(draw: np.random.Generator, trials: int, seeds: int, items: int) -> np.ndarray:
    """Return the accuracies of two equal arms on fixed test sentences, in percent: [T, 2, S].

    Sentences differ in difficulty, and seeds in how good their encoder is.
    """
    difficulty = draw.normal(1.0, 1.5, items)
    skill = draw.normal(0.0, 0.2, (trials, 2, seeds, 1))
    chance = 1 / (1 + np.exp(-(difficulty + skill)))
    return 100 * (draw.random(chance.shape, dtype=np.float32) < chance).mean(axis=-1)


def resampled(differences: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return whether the percentile bootstrap over the seeds covers 0: [T]."""
    chosen = draw.integers(0, differences.shape[1], (500, differences.shape[1]))
    low, high = np.percentile(differences[:, chosen].mean(axis=-1), [2.5, 97.5], axis=1)
    return (low <= 0) & (high >= 0)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "items"), [(3, 1000), (5, 300), (5, 1000), (8, 1000)])
def test_the_interval_holds_what_it_says(seeds: int, items: int, claims: ModuleType) -> None:
    """It covers the true difference, 0, in 95% of experiments; the bootstrap over as few seeds does not."""
    draw = np.random.default_rng(seeds)
    figures = accuracies(draw, 1500, seeds, items)
    found = [claims.compare(*({str(n): value for n, value in enumerate(arm, 1)} for arm in both)) for both in figures]
    covered = np.array([abs(each.gain) <= each.half for each in found])
    assert 0.935 < covered.mean() < 0.965
    assert resampled(figures[:, 0] - figures[:, 1], draw).mean() < 0.92


def test_among_many_claims_without_an_effect_hardly_one_is_decided(claims: ModuleType) -> None:
    draw, wrong, uncorrected = np.random.default_rng(1), 0, 0
    for _ in range(400):
        found = {
            n: claims.compare(dict(enumerate(values, 1)), {"0": 0.0})
            for n, values in enumerate(draw.normal(size=(16, 5)))
        }
        decided, _ = claims.holm({n: each.probability for n, each in found.items()})
        wrong += bool(decided)
        uncorrected += any(each.probability < 0.05 for each in found.values())
    assert wrong / 400 < 0.08 and uncorrected / 400 > 0.4


def test_holm_goes_on_until_one_is_not_decided(claims: ModuleType) -> None:
    assert claims.holm({"a": 0.02, "b": 0.001, "c": 0.04}) == ({"a", "b", "c"}, 0.05)
    assert claims.holm({"a": 0.03, "b": 0.001, "c": 0.04}) == ({"b"}, 0.025)
    assert claims.holm({}) == (set(), 0.05)


def test_power_is_how_often_a_gain_is_decided(claims: ModuleType) -> None:
    draw, gain, level = np.random.default_rng(2), 2.0, 0.01
    values = draw.normal(gain, 1.0, (20_000, 5))
    error = values.std(axis=1, ddof=1) / math.sqrt(5)
    bound = float(student.isf(level / 2, 4))
    decided = (abs(values.mean(axis=1)) > bound * error).mean()
    assert claims.Comparison(0.0, 1 / math.sqrt(5), 5).power(gain, level) == pytest.approx(decided, abs=0.015)
    assert claims.Comparison(0.0, 1e-3, 5).power(gain, level) == pytest.approx(1.0)
    # scipy's noncentral t has no number for the tail on the other side.
    assert claims.Comparison(0.0, 0.1264, 5).power(1, 0.05 / 16) == pytest.approx(0.794, abs=0.001)
    assert claims.Comparison(0.0, 0.0, 5).power(gain, level) == 1.0


def test_verdicts_say_what_is_known(claims: ModuleType) -> None:
    def words(*differences: float, **more: float) -> str:
        claim = {"better": "a", "worse": "b", "figure": "F", **more}
        names = {str(n): value for n, value in enumerate(differences, 1)}
        figures = {("e", "", "a", "F"): names, ("e", "", "b", "F"): dict.fromkeys(names, 0.0)}
        return claims.verdicts({"p": ({"e": {"headline": claim, "claims": []}}, figures)})["p", "e"]

    assert words(2, 3, 4) == "needs 5 seeds (has 3)"
    assert words(1, 2, 3, 4, 5) == "better (5 seeds, t = 4.2)"
    assert words(-1, -2, -3, -4, -5) == "worse (5 seeds, t = -4.2)"
    assert words(-2, -1, 0, 1, 2, gain=100) == "undecided (power to see the paper's gain: 1.00)"
    assert words(-2, -1, 0, 1, 2).startswith("undecided (power to see a gain of 1 point: 0.2")


def test_a_claim_with_few_seeds_counts_in_the_correction(claims: ModuleType) -> None:
    figures = {("e", "", "a", "F"): {str(n): float(n) for n in range(1, 6)}, ("e", "", "b", "F"): {"0": 0.0},
               ("f", "", "a", "F"): {"1": 1.0}, ("f", "", "b", "F"): {"1": 0.0}}  # fmt: skip
    effect = {"headline": {"better": "a", "worse": "b", "figure": "F"}, "claims": []}
    found = claims.verdicts({str(n): ({"e" if n == 0 else "f": effect}, figures) for n in range(9)})
    assert found["0", "e"].startswith("undecided") and found["8", "f"] == "needs 5 seeds (has 1)"


def test_a_grid_grows_until_the_best_rate_is_inside(
    replicate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rates are searched with two seeds, here with the start of each; more rates are tried while an edge is best."""
    grids = list[dict[str, list[str]]]()

    def sweep(
        recipes: dict[str, str], grid: dict[str, list[str]], place: Path
    ) -> tuple[dict[str, str], dict[str, str]]:
        grids.append({**grid, "seeds": [*recipes]})
        best = min(grid["optimizer.lr"], key=lambda rate: abs(float(rate) - 0.0078))
        directories = {seed: str(tmp_path / seed) for seed in recipes}
        for directory in directories.values():
            Path(directory).mkdir(exist_ok=True)
            Path(directory, "summary.json").write_text('{"steps": 3, "train_seconds": 6}')
        return {"optimizer.lr": best}, directories

    monkeypatch.setattr(replicate, "sweep", sweep)
    models = replicate.train({"1": "a", "2": "b", "3": "c"}, {"optimizer.lr": [1e-3, 2e-3]}, tmp_path)
    assert grids[-2] == {"optimizer.lr": ["0.001", "0.002", "0.004", "0.008", "0.016"], "seeds": ["1", "2"]}
    assert grids[-1] == {"optimizer.lr": ["0.008"], "seeds": ["1", "2", "3"]} and len(models) == 3
    assert replicate.wider(["0.001", "0.002"], "0.001") == ["0.001", "0.002", "0.0005"]
    assert replicate.wider(["0.001"], "0.001") is None


def test_what_needs_the_seed_is_made_once_a_seed(
    replicate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = list[list[str]]()

    def call(command: list[str], log: Path) -> list[str]:
        made.append(command)
        log.parent.mkdir(parents=True, exist_ok=True)
        return []

    monkeypatch.setattr(replicate, "call", call)
    monkeypatch.setattr(replicate, "measure", lambda effect, row, place, places: [row | {"model": places["model"]}])
    prepare = {"data": "data {out}", "start": "train {data} {seed} {out}", "shape": "copy {start} {out}"}
    arms = {"start": {"path": "{shape}"}, "given": {"path": "{data}"}, "other": {"command": "other {start} {out}"}}
    rows = [*replicate.figures({"prepare": prepare, "arms": arms}, tmp_path / "p" / "e", {}, ["1", "2"])]
    assert [command[0] for command in made] == ["data", "train", "copy", "train", "copy", "other", "other"]
    assert [row["seed"] for row in rows] == ["1", "2", "0", "1", "2"]
    assert len({row["model"] for row in rows}) == 5


def test_what_a_killed_command_has_left_is_made_anew(replicate: ModuleType, tmp_path: Path) -> None:
    command = "bash -c 'mkdir {out} && touch {out}/half && test -e {ready} && touch {out}/whole'"
    with pytest.raises(UserError, match="bash failed"):
        replicate.make(tmp_path / "data", command, {"ready": str(tmp_path / "ready")})
    assert [path.name for path in tmp_path.glob("data-*/*")] == ["half"]
    (tmp_path / "ready").touch()
    made = Path(replicate.make(tmp_path / "data", command, {"ready": str(tmp_path / "ready")}))
    assert sorted(path.name for path in made.iterdir()) == ["half", "whole"]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a repository with the effect above and its data in the current folder; return the arguments for it."""
    effects, data = tmp_path / "examples" / "toy" / "effects", tmp_path / "my data"
    effects.mkdir(parents=True)
    (effects / "steps.yaml").write_text(EFFECT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (data / "tatoeba").mkdir(parents=True)
    write_encoder(data / "encoder")
    for column, (code, name) in enumerate((("de", "deu"), ("en", "eng"))):
        lines = [pair[column] + "\n" for pair in sentence_pairs(320)]
        (data / f"text.{code}").write_text("".join(lines[:300]), encoding="utf-8")
        (data / "tatoeba" / f"tatoeba.deu-eng.{name}").write_text("".join(lines[300:]), encoding="utf-8")
    return ["toy", "--data", str(data), "--seeds", "2"]


@pytest.mark.nightly
def test_an_effect_from_end_to_end(
    toy: list[str],
    tmp_path: Path,
    replicate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(replicate, "REPOSITORY", tmp_path)
    assert replicate.main(toy) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    assert "| More steps find more, long | +9 Tatoeba | +" in printed.out
    assert " | needs 5 seeds (has 2) |" in printed.out and " | secondary |" in printed.out
    results = tmp_path / "examples" / "toy" / "results.csv"
    rows = replicate.read_table(results)
    assert [row["arm"] for row in rows] == ["trained", *["random weights"] * 3, "trained", "given", "copied", "copied"]
    assert {row["chosen"] for row in rows[:5:4]} == {"optimizer.lr=0.01"} and rows[0]["steps"] == "30"
    before = results.read_bytes()
    assert replicate.main(toy) == 0  # nothing is trained or measured again
    again = capsys.readouterr()
    assert again.out == printed.out and results.read_bytes() == before and "xrep-eval" not in again.err


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_same_command_goes_on_after_twenty_kills(
    toy: list[str], tmp_path: Path, replicate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own process or all of its processes are killed, or the user presses Ctrl-C; the figures at the end are those
    of a command that nobody disturbed, and nothing but the list of figures is replaced."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")

    def start(place: str) -> subprocess.Popen[str]:
        (tmp_path / place).mkdir(exist_ok=True)
        command = [sys.executable, str(tmp_path / "scripts" / "replicate.py"), *toy]
        pipe = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path / place, start_new_session=True, **pipe)

    def figures() -> list[dict[str, str]]:
        kept = {"minutes", "commit"}
        return [{key: row[key] for key in row.keys() - kept} for row in replicate.read_table(results)]

    results, draw = tmp_path / "examples" / "toy" / "results.csv", random.Random(3)
    began = time.monotonic()
    program = start("whole")
    assert program.wait() == 0, program.stderr and program.stderr.read()
    seconds, expected = time.monotonic() - began, figures()
    results.unlink()
    for number in range(20):
        program = start("cut")
        time.sleep(draw.random() * seconds / 4)
        if program.poll() is not None:
            break
        if number % 3:
            os.killpg(program.pid, signal.SIGINT if number % 3 == 1 else signal.SIGKILL)
        else:
            program.kill()
        program.wait()
        assert not results.exists() or figures() == expected
    program = start("cut")
    assert program.wait() == 0, program.stderr and program.stderr.read()
    assert figures() == expected
