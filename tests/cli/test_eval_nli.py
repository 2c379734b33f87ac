"""``xrep-eval nli`` on runs that were trained here."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Measure
from tests.evaluation.conftest import published
from tests.support.commands import Commands
from tests.support.nli_data import nli_rows, write_columns, write_jsonl
from tests.support.once import made_once
from tests.support.runs import SMALL_MODEL, compose_run
from xrep.training.run import train

pytestmark = pytest.mark.slow
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
def place() -> Path:
    """English training data, English and German test data, and a run, which uses the validation of its task."""

    def make(folder: Path) -> None:
        write_jsonl(folder / "train" / "snli_1.0_train.jsonl", nli_rows(150))
        for code, split in (("en", "dev"), ("en", "test"), ("de", "test")):
            write_columns(folder / "xnli" / f"{split}-{code}.tsv", nli_rows(30, code, seed=1))
        write_columns(folder / "train" / "dev-en.tsv", nli_rows(30, seed=1))
        given = {"task": "nli", "criterion": "nli", "vocab_size": 70, "lr": 1e-2, "max_steps": 40, "validate_every": 10}
        train(compose_run(folder / "train", folder / "run", **given))

    return made_once("nli", make)


def test_random_weights_below_the_trained_classifier(place: Path, measure: Measure) -> None:
    found = measure("nli", "--path", place / "run/best", "--data", place / "xnli", "--langs", "en", "--random-baseline")
    assert found["random_weights"]["headline"]["mean of 1"]["mean"] < found["headline"]["mean of 1"]


def test_it_is_what_training_found_on_the_dev_split(place: Path, measure: Measure) -> None:
    best = json.loads((place / "run" / "summary.json").read_text())["best"]
    found = measure("nli", "--path", place / "run/best", "--data", place / "xnli", "--langs", "en", "--split", "dev")
    assert best["metric"] == "accuracy" and best["value"] > 40
    assert found["headline"]["mean of 1"] == pytest.approx(best["value"])
    assert found["values"]["tables"]["en"]["examples"] == 90
    assert found["overlap"]["found"] > 0 and found["overlap"]["total"] == 90  # sentences share a few words
    assert list(found["data"]) == [str(place / "xnli" / "dev-en.tsv")]


def test_classifiers_of_several_parts(place: Path, data_directory: Path, cli: Commands, measure: Measure) -> None:
    (cli.folder / "parts.yaml").write_text(PARTS.format(bitext=data_directory, nli=place / "train"))
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    given = "--config parts.yaml --max-steps=25 --device=cpu --no-tensorboard --save-dir=run".split()
    assert cli("train", *given, *small).code == 0
    given = ["--path", "run/best", "--data", place / "xnli", "--langs", "en", "--split", "dev"]
    found = [measure("nli", *given, "--part", part)["headline"]["mean of 1"] for part in ("nli", "other")]
    best = json.loads((cli.folder / "run" / "summary.json").read_text())["best"]
    assert sum(found) / 2 == pytest.approx(best["value"]) and found[0] != found[1]


@pytest.mark.nightly
def test_published_xnli(place: Path, measure: Measure) -> None:
    given = ["--path", place / "run/best", "--data", published("nli") / "xnli", "--langs", "de,sw"]
    found = measure("nli", *given)
    assert [own["examples"] for own in found["values"]["tables"].values()] == [5010, 5010]
    assert 20 < found["headline"]["mean of 2"] < 60
