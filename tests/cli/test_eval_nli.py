"""``xrep-eval nli`` on runs that were trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.conftest import published
from tests.support.encoders import write_encoder
from tests.support.nli_data import nli_rows, write_columns, write_jsonl
from tests.support.runs import SMALL_MODEL, options
from xrep_cli.eval import main as evaluate
from xrep_cli.train import main as train

PARTS = """
parts:
- name: ranks
  task: {{name: bitext, data: {bitext}, batch_size: 30, max_length: 32}}
  criterion: translation_ranking
- name: nli
  task: {{name: nli, data: {nli}, tokenizer: {bitext}, batch_size: 60, max_length: 32}}
  criterion: {{name: nli, head: mlp, head_size: 16, head_dropout: 0.5, features: [difference, product]}}
- name: other
  weight: 0.5
  task: {{name: nli, data: {nli}, tokenizer: {bitext}, batch_size: 60, max_length: 32}}
  criterion: nli
validation: nli
optimizer: {{lr: 0.01}}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return English training data, and English and German test data."""
    folder = tmp_path_factory.mktemp("nli")
    write_jsonl(folder / "train" / "snli_1.0_train.jsonl", nli_rows(150))
    for code, split in (("en", "dev"), ("en", "test"), ("de", "test")):
        write_columns(folder / "xnli" / f"{split}-{code}.tsv", nli_rows(30, code, seed=1))
    write_columns(folder / "train" / "dev-en.tsv", nli_rows(30, seed=1))
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without --validation the run uses the validation of its task."""
    directory = tmp_path_factory.mktemp("run") / "run"
    given = {"task": "nli", "criterion": "nli", "vocab_size": 70, "lr": 1e-2, "max_steps": 40, "validate_every": 10}
    assert train([str(data / "train"), *options(**given, save_dir=directory)]) == 0
    return directory


def measured(capsys: pytest.CaptureFixture, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate(["nli", *map(str, arguments), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_random_weights_below_the_trained_classifier(data: Path, run: Path, capsys: pytest.CaptureFixture) -> None:
    given = ["--path", run / "best", "--data", data / "xnli", "--langs", "en", "--random-baseline"]
    found = measured(capsys, *given)
    assert found["random_weights"]["headline"]["mean of 1"]["mean"] < found["headline"]["mean of 1"]


def test_it_is_what_training_found_on_the_dev_split(data: Path, run: Path, capsys: pytest.CaptureFixture) -> None:
    summary = json.loads((run / "summary.json").read_text())
    found = measured(capsys, "--path", run / "best", "--data", data / "xnli", "--langs", "en", "--split", "dev")
    assert summary["best"]["metric"] == "accuracy" and summary["best"]["value"] > 40
    assert found["values"]["mean"] == pytest.approx(summary["best"]["value"])
    assert found["values"]["languages"]["en"]["pairs"] == 90
    assert found["overlap"]["found"] > 0 and found["overlap"]["total"] == 90  # sentences share a few words
    assert list(found["data"]) == [str(data / "xnli" / "dev-en.tsv")]


def test_languages_that_were_not_trained(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out.json"
    arguments = ["--path", run / "best", "--data", data / "xnli", "--json", output]
    assert evaluate(["nli", *map(str, arguments)]) == 0
    printed = capsys.readouterr().out
    values = json.loads(output.read_text())["values"]
    assert list(values["languages"]) == ["de", "en"] and values["languages"]["de"]["overlap"]["found"] == 0
    assert "German (de)" in printed and "overlap: " in printed
    crossed = measured(capsys, "--path", run / "best", "--data", data / "xnli", "--premise-lang", "en", "--langs", "de")
    assert list(crossed["values"]["languages"]) == ["en-de"]


@pytest.mark.slow
def test_classifiers_of_several_parts(
    data: Path, data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "parts.yaml").write_text(PARTS.format(bitext=data_directory, nli=data / "train"))
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    given = ["--max-steps=25", "--device=cpu", "--no-tensorboard", f"--save-dir={tmp_path / 'run'}"]
    assert train(["--config", str(tmp_path / "parts.yaml"), *small, *given]) == 0
    capsys.readouterr()
    arguments = ["--path", tmp_path / "run" / "best", "--data", data / "xnli", "--langs", "en", "--split", "dev"]
    assert evaluate(["nli", *map(str, arguments)]) == 2
    assert "has several classifiers (nli other); choose one with --part" in capsys.readouterr().err
    found = [measured(capsys, *arguments, "--part", part)["values"]["mean"] for part in ("nli", "other")]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert sum(found) / 2 == pytest.approx(summary["best"]["value"]) and found[0] != found[1]
    assert evaluate(["nli", *map(str, arguments), "--part", "ranks"]) == 2
    assert "has no classifier of natural language inference; give --path a checkpoint" in capsys.readouterr().err


def test_other_encoders_and_vectors_are_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_encoder(tmp_path / "run" / "best")
    assert evaluate(["nli", "--path", str(path), "--data", str(data / "xnli")]) == 2
    printed = capsys.readouterr()
    assert (
        "best: has no classifier of natural language inference; give --path a checkpoint of a run with" in printed.err
    )
    assert printed.err.count("\n") == 1 and printed.out == ""
    (tmp_path / "vectors").mkdir()
    listed = ["--data", str(data / "xnli"), "--list-sentences", str(tmp_path / "vectors" / "sentences.tsv")]
    assert evaluate(["nli", *listed]) == 2
    assert "vectors of another system have no classifier; leave --list-sentences out" in capsys.readouterr().err
    assert not (tmp_path / "vectors" / "sentences.tsv").exists()


@pytest.mark.slow
def test_published_xnli(run: Path, capsys: pytest.CaptureFixture) -> None:
    found = measured(capsys, "--path", run / "best", "--data", published("nli") / "xnli", "--langs", "de,sw")
    assert [found["values"]["languages"][code]["pairs"] for code in ("de", "sw")] == [5010, 5010]
    assert 20 < found["values"]["mean"] < 60
