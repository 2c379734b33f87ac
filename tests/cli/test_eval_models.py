"""``xrep-eval`` of several models, and what its records say of options and files."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.annotated import write_labels
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.nli_data import nli_rows, write_columns, write_jsonl
from tests.support.runs import compose_run
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.cleaning import sentence_hashes
from xrep.training.run import train
from xrep_cli.eval import main
from xrep_cli.report import main as report
from xrep_cli.train import main as train_main

CLASSIFIER = (
    "--task classification --criterion classification --languages de --layers 1 --hidden-size 16 --heads 2 "
    "--feedforward-size 16 --max-positions 32 --max-length 32 --vocab-size 50 --max-steps 1 --device cpu "
    "--no-tensorboard --warmup-steps 0"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tatoeba")
    for side, column in (("deu", 0), ("eng", 1)):
        text = "".join(f"{pair[column]}\n" for pair in sentence_pairs(20))
        (folder / f"tatoeba.deu-eng.{side}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("encoders")
    return [write_encoder(folder / name / "best", seed=seed) for seed, name in enumerate("abc")]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[Path]]]:
    """Note the path of each encoder that is loaded, and those of the encoders that are in memory then."""
    load, models, noted = SentenceEncoder.load, list[tuple[Path, Any]](), list[tuple[Path, list[Path]]]()

    def noting(path: Path, **named: Any) -> SentenceEncoder:
        gc.collect()
        noted.append((Path(path), [other for other, model in models if model() is not None]))
        encoder = load(path, **named)
        models.append((Path(path), weakref.ref(encoder.model)))
        return encoder

    monkeypatch.setattr(SentenceEncoder, "load", noting)
    return noted


def measured(test: str, *arguments: object, file: Path) -> dict[str, Any]:
    assert main([test, *map(str, arguments), "--json", str(file)]) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def test_models_are_in_memory_one_after_the_other(
    encoders: list[Path], data: Path, loaded: list[tuple[Path, list[Path]]], tmp_path: Path
) -> None:
    paths = [part for path in encoders for part in ("--path", path)]
    found = measured("tatoeba", *paths, "--dimensions", "8", "--data", data, file=tmp_path / "all.json")
    assert len(found["models"]) == 6 and len(found["differences"]) == 5
    assert {path for path, _ in loaded} == set(encoders)
    assert [others for _, others in loaded if others] == []


@pytest.mark.slow
def test_runs_of_a_report_are_in_memory_one_after_the_other(
    data_directory: Path, data: Path, loaded: list[tuple[Path, list[Path]]], tmp_path: Path
) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    for run in runs:
        train(compose_run(data_directory, run, max_steps=2, save_every=0, validate_every=2))
    assert report([*map(str, runs), "--data", str(data), "--output", str(tmp_path / "report.html")]) == 0
    assert {path.parent for path, _ in loaded} == set(runs)
    assert [(path, other) for path, others in loaded for other in others if other.parent != path.parent] == []


def test_a_model_that_cannot_be_loaded_is_refused_before_another_is_measured(
    encoders: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = ["--path", str(encoders[0]), "--path", str(tmp_path / "none"), "--data", str(data)]
    assert main(["tatoeba", *given]) == 2
    printed = capsys.readouterr()
    assert str(tmp_path / "none") in printed.err and not printed.out


@pytest.mark.parametrize(
    ("test", "given"),
    [
        ("neighbours", ["--data", "{data}/tatoeba.deu-eng.deu", "--query", "a", "--lang", "de"]),
        ("scatter", ["--data", "{data}", "--plot", "{out}/plot.svg"]),
        ("alignment", ["--data", "de-en={data}/tatoeba.deu-eng.deu,{data}/tatoeba.deu-eng.eng", "--pairs", "8"]),
        ("language-bias", ["--data", "{data}", "--langs", "de"]),
    ],
)
def test_resamples_are_refused_before_a_model_is_loaded(
    test: str,
    given: list[str],
    encoders: list[Path],
    data: Path,
    tmp_path: Path,
    loaded: list[tuple[Path, list[Path]]],
    capsys: pytest.CaptureFixture,
) -> None:
    line = [part.format(data=data, out=tmp_path) for part in given]
    assert main([test, "--path", str(encoders[0]), *line, "--resamples", str(tmp_path / "drawn.json")]) == 2
    printed = capsys.readouterr()
    assert "this evaluation resamples no figure; leave --resamples out" in printed.err and not printed.out
    assert not loaded and not list(tmp_path.iterdir())


def test_what_figures_depend_on_is_in_the_settings_of_every_record(
    encoders: list[Path], data: Path, tmp_path: Path
) -> None:
    np.save(encoders[0].parent / "training_hashes.npy", sentence_hashes([sentence_pairs(1)[0][0]]))
    shared = ["--path", encoders[0], "--data", data, "--layer", "0", "--drop-overlap"]
    for test in ("tatoeba", "all"):
        found = measured(test, *shared, file=tmp_path / f"{test}.json")
        records = [found, *found["values"].get("results", {}).values()]
        assert len(records) == (3 if test == "all" else 1)
        for record in records:
            own = {name: record["settings"][name] for name in ("drop_overlap", "layer", "precision")}
            assert own == {"drop_overlap": True, "layer": 0, "precision": "float32"} and "layer" not in record


def test_pairs_that_are_left_out_are_not_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, others = nli_rows(10, seed=3), nli_rows(10, seed=4)
    known = [row for row in known if not {row[0], row[1]} & {text for other in others for text in other[:2]}]
    write_jsonl(tmp_path / "train" / "snli_1.0_train.jsonl", nli_rows(60))
    write_columns(tmp_path / "train" / "dev-en.tsv", others)
    run = tmp_path / "run"
    train(compose_run(tmp_path / "train", run, task="nli", criterion="nli", vocab_size=70, max_steps=2))
    np.save(run / "training_hashes.npy", np.unique(sentence_hashes([text for row in known for text in row[:2]])))
    write_columns(tmp_path / "test" / "test-en.tsv", known + others)
    encode, encoded = SentenceEncoder.encode, set[str]()

    def noting(self: SentenceEncoder, sentences: list[str], *given: Any, **named: Any) -> np.ndarray:
        encoded.update(sentences)
        return encode(self, sentences, *given, **named)

    monkeypatch.setattr(SentenceEncoder, "encode", noting)
    given = ["--path", run / "last", "--data", tmp_path / "test", "--drop-overlap"]
    found = measured("nli", *given, file=tmp_path / "nli.json")
    assert found["values"]["languages"]["en"]["pairs"] == len(others)
    assert encoded - {known[0][0], known[0][1]} == {text for row in others for text in row[:2]}


@pytest.mark.slow
def test_files_of_languages_that_were_not_measured_are_not_recorded(tmp_path: Path) -> None:
    folder, run = write_labels(tmp_path / "data"), tmp_path / "run"
    (folder / "test-fr.tsv").write_text("awake\tle chat joue\n", encoding="utf-8")
    assert train_main([str(folder), "--save-dir", str(run), *CLASSIFIER.split()]) == 0
    shared = ["--path", run / "last", "--data", folder]
    for langs, names in (("de", ["test-de.tsv"]), ("all", ["test-de.tsv", "test-fr.tsv"])):
        found = measured("amazon", *shared, "--langs", langs, file=tmp_path / "amazon.json")
        assert [Path(file).name for file in found["data"]] == names
