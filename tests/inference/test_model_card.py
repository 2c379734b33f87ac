"""Model cards: their metadata is that of the Hugging Face Hub, with the data and the results of the model."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.evaluation.conftest import write_tatoeba
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep import SentenceEncoder
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep_cli.eval import main as xrep_eval
from xrep_cli.export import main as xrep_export


def metadata(directory: Path) -> dict[str, Any]:
    _, front, text = (directory / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert text.startswith(f"\n# {directory.name}\n")
    return yaml.safe_load(front)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with two towers whose run read the files of two folders, one by a part, and a test set of it."""
    folder = tmp_path_factory.mktemp("card")
    (folder / "corpus").mkdir()
    for name in ("train.de", "train.en", "valid.de"):
        (folder / "corpus" / name).write_text(f"ein Haus {name}\n")
    (folder / "more").mkdir()
    (folder / "more" / "train.fr").write_text("une maison\n")
    tasks = [{"task": {"name": "bitext", "data": str(folder / name)}} for name in ("corpus", "more")]
    options = {**tasks[0], "parts": [tasks[1], {"name": "b", "criterion": {"data": "no"}}, {"task": {"data": None}}]}
    write_encoder(folder / "run" / "best", towers="separate", options=options)
    write_tatoeba(folder / "tatoeba", "deu", sentence_pairs(30))
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Path:
    line = ["--data", folder / "tatoeba", "--langs", "deu", "--path", folder / "run/best", "--json", folder / "t.json"]
    assert xrep_eval(["tatoeba", *map(str, line)]) == 0
    return folder / "t.json"


def test_languages_data_results_and_licence(folder: Path, results: Path, tmp_path: Path) -> None:
    run = folder / "run" / "best"
    line = ["--path", str(run), "--output", str(tmp_path / "out"), "--license", "apache-2.0", "--results", str(results)]
    assert xrep_export(line) == 0
    found = metadata(tmp_path / "out")
    assert (found["language"], found["license"]) == (["de", "en"], "apache-2.0")
    assert (found["library_name"], found["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    names = ["corpus/train.de", "corpus/train.en", "more/train.fr"]
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]
    data = [{"name": name, "sha256": digest} for name, digest in zip(names, digests, strict=True)]
    assert found["training_data"] == data
    ((model,),) = [found["model-index"]]
    ((label, value),) = json.loads(results.read_text())["headline"].items()
    (entry,) = model["results"]
    assert model["name"] == "out" and entry["task"] == {"type": "BitextMining"}
    assert entry["metrics"] == [{"type": "accuracy", "value": value}]
    assert {"type": "tatoeba", "config": label, "split": "test"}.items() <= entry["dataset"].items()
    text = (tmp_path / "out" / "README.md").read_text()
    assert f"| tatoeba, {label} | accuracy | {value:.2f} |" in text and digests[0] in text


@pytest.mark.parametrize("format", ["hf", "xrep"])
def test_every_format_has_one(folder: Path, tmp_path: Path, format: Any) -> None:
    export_path(folder / "run" / "best", tmp_path / "out", format)
    found = metadata(tmp_path / "out")
    assert found["library_name"] == {"hf": "transformers", "xrep": "xrep"}[format]
    assert found["language"] == ["de", "en"] and "license" not in found and "model-index" not in found


@pytest.mark.parametrize(("format", "text"), [
    ("sentence-transformers", None), ("xrep", None), ("xrep", "der Koch\nthe cook\n"),
])  # fmt: skip
def test_declared_languages_are_kept(shared_encoder: Path, tmp_path: Path, format: Any, text: str | None) -> None:
    """Only the card of a directory of another library names its languages."""
    export_path(shared_encoder, tmp_path / "st", "sentence-transformers")
    (tmp_path / "lines").write_text(text or "")
    smaller = {"vocabulary_from": [str(tmp_path / "lines")]} if text else {}
    export_path(tmp_path / "st", tmp_path / "again", format, **smaller)
    assert metadata(tmp_path / "again")["language"] == ["de", "en"]
    first, again = (SentenceEncoder.load(tmp_path / name, device="cpu") for name in ("st", "again"))
    assert again.languages == ["de", "en"]
    assert np.array_equal(first.encode(["der Koch"]), again.encode(["der Koch"]))


def test_of_several_models_it_has_the_results_of_its_own(folder: Path, tmp_path: Path) -> None:
    write_encoder(tmp_path / "other", towers="separate", seed=8)
    run, both = folder / "run" / "best", tmp_path / "both.json"
    line = ["--path", tmp_path / "other", "--path", run, "--data", folder / "tatoeba", "--langs", "deu", "--json", both]
    assert xrep_eval(["tatoeba", *map(str, line)]) == 0
    headline = json.loads(both.read_text())["models"][str(run)]["headline"]
    SentenceEncoder.load(run, device="cpu").save(tmp_path / "out", results=[both])
    (model,) = metadata(tmp_path / "out")["model-index"]
    assert [each["metrics"][0]["value"] for each in model["results"]] == list(headline.values())


def test_results_of_another_model_are_refused(results: Path, encoder: SentenceEncoder, tmp_path: Path) -> None:
    message = "t.json: `results` were measured on another model, .*run/best; measure the model that is"
    with pytest.raises(UserError, match=message):
        encoder.save(tmp_path / "out", results=[results])
    with pytest.raises(UserError, match="`license` 'My own licence' is not the identifier of a licence"):
        encoder.save(tmp_path / "out", license="My own licence")
    assert not (tmp_path / "out").exists()


def test_another_pooling_makes_another_model(folder: Path, results: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`results` were measured on another model"):
        export_path(
            folder / "run" / "best", tmp_path / "out", "sentence-transformers", pooling="max", results=[str(results)]
        )
