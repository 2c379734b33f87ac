"""Accuracy of a classifier on inference data of several languages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.evaluation.conftest import NgramEncoder, measured
from tests.support.nli_data import Row, nli_rows, write, write_columns, write_jsonl
from xrep.criteria.nli import Nli
from xrep.errors import UserError
from xrep.evaluation import nli
from xrep.text.cleaning import sentence_hashes
from xrep.text.nli_readers import LABELS, discover_nli_test

GERMAN, ENGLISH = nli_rows(10, "de", seed=3), nli_rows(10, seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_columns(tmp_path / "test-de.tsv", GERMAN)
    write_columns(tmp_path / "test-en.tsv", ENGLISH)
    return tmp_path


@pytest.fixture
def classifier() -> Nli:
    torch.manual_seed(1)
    model = SimpleNamespace(output_size=1024)
    return Nli(Nli.Config(scale_vectors=False), model, None).eval()


def by_hand(classifier: Nli, encoder: NgramEncoder, rows: list[Row], languages: tuple[str, str]) -> list[bool]:
    weight, bias = (tensor.detach().double().numpy() for tensor in classifier.output.parameters())
    right = []
    for *pair, label in rows:
        sides = zip(pair, languages, strict=True)
        u, v = (encoder.encode([text], lang, normalize=False)[0].astype(np.float64) for text, lang in sides)
        logits = weight @ np.concatenate([u, v, np.abs(u - v), u * v]) + bias
        right.append(LABELS[int(logits.argmax())] == label)
    return right


def read(folder: Path, languages: str = "all", premises: str | None = None) -> list[nli.NliTest]:
    return nli.read_tests(discover_nli_test(folder, "test", "en"), languages, premises)


def test_every_language_is_measured(folder: Path, classifier: Nli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nli, "CHUNK", 7)
    encoder = NgramEncoder(known=["de", "en"])
    results = nli.accuracies(encoder, classifier, read(folder))[0]
    expected = {
        "de": 100 * np.mean(by_hand(classifier, encoder, GERMAN, ("de", "de"))),
        "en": 100 * np.mean(by_hand(classifier, encoder, ENGLISH, ("en", "en"))),
    }
    assert {name: result.accuracy for name, result in results.items()} == pytest.approx(expected)
    assert expected["de"] != expected["en"]
    monkeypatch.setattr(nli, "load_classifier", lambda encoder, part: classifier)
    figures = measured(nli.NliAccuracy, encoder, data=str(folder))
    assert figures.values["mean"] == pytest.approx(sum(expected.values()) / 2)
    assert figures.headline == {"mean of 2": figures.values["mean"]}
    drawn = figures.resamples["mean of 2"]
    assert drawn.mean() == pytest.approx(figures.values["mean"], abs=1) and drawn.std() > 1
    lines = figures.printed().splitlines()
    assert lines[2].split() == ["German", "(de)", "30", f"{expected['de']:.2f}"]
    assert lines[-3].split() == ["mean", "of", "2", "60", f"{figures.values['mean']:.2f}"]
    assert lines[-1] == "overlap: unknown (no training hashes beside the encoder)"
    assert [test.name for test in read(folder, "deu")] == ["de"]


def test_premises_of_another_language(folder: Path, classifier: Nli, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = NgramEncoder(known=["de", "en"])
    results = nli.accuracies(encoder, classifier, read(folder, "all", "eng"))[0]
    crossed = [(one[0], *other[1:]) for one, other in zip(ENGLISH, GERMAN, strict=True)]
    assert list(results) == ["en-de", "en"]
    assert results["en-de"].accuracy == pytest.approx(
        100 * np.mean(by_hand(classifier, encoder, crossed, ("en", "de")))
    )
    monkeypatch.setattr(nli, "load_classifier", lambda encoder, part: classifier)
    printed = measured(nli.NliAccuracy, encoder, data=str(folder), premise_lang="en").printed()
    assert "English, German (en-de)" in printed and "English (en) " in printed


def test_rows_that_name_their_language_and_files_that_were_read(folder: Path, tmp_path: Path) -> None:
    rows = [
        f"{label}\t{lang}\t{one}\t{two}" for lang, own in (("sw", ENGLISH), ("de", GERMAN)) for one, two, label in own
    ]
    file = write(tmp_path / "xnli" / "xnli.test.tsv", ["gold_label\tlanguage\tsentence1\tsentence2", *rows])
    crossed, _ = read(file, "all", "sw")
    assert crossed.name == "sw-de" and crossed.premises == [row[0] for row in ENGLISH]
    assert crossed.hypotheses == [row[1] for row in GERMAN]
    assert [LABELS[label] for label in crossed.labels] == [row[2] for row in GERMAN]
    for premise_lang, names in ((None, ["test-de.tsv"]), ("en", ["test-de.tsv", "test-en.tsv"])):
        evaluation = nli.NliAccuracy(nli.NliAccuracy.Config(data=str(folder), langs="de", premise_lang=premise_lang))
        evaluation.read()
        assert sorted(file.name for file in evaluation.files) == names


def test_what_was_trained_on_is_counted_and_left_out(folder: Path, classifier: Nli) -> None:
    known = [row for row in GERMAN if row[0] == GERMAN[0][0]]
    np.save(folder / "hashes.npy", np.unique(sentence_hashes([GERMAN[0][0].upper(), ENGLISH[3][1]])))
    encoder = NgramEncoder(training_hashes=folder / "hashes.npy")
    (german, english), kept = nli.accuracies(encoder, classifier, read(folder))[0].values(), read(folder)
    assert german.overlap.found == len(known) == 3 and german.overlap.total == 30 and english.overlap.found >= 1
    dropped = nli.accuracies(encoder, classifier, kept, drop_overlap=True)[0]["de"]
    rest = [row for row in GERMAN if row not in known]
    assert dropped.pairs == 27
    assert dropped.accuracy == pytest.approx(100 * np.mean(by_hand(classifier, encoder, rest, ("de", "de"))))
    np.save(folder / "hashes.npy", np.unique(sentence_hashes([row[0] for row in GERMAN])))
    with pytest.raises(
        UserError, match="30 of 30 examples of de were in the training text, too few are left; measure without"
    ):
        nli.accuracies(encoder, classifier, read(folder, "de"), drop_overlap=True)
    with pytest.raises(UserError, match="cannot encode en"):
        nli.accuracies(NgramEncoder(known=["de"]), classifier, read(folder))


def test_refusals(folder: Path, tmp_path: Path) -> None:
    for languages, premises, problem in (
        ("de,fr", None, "no labelled pairs in fr; the data has de,en"),
        ("de", "fr", "no labelled pairs in fr; the data has de,en"),
        (",", None, "no language named; the data has de,en"),
    ):
        with pytest.raises(UserError, match=problem):
            read(folder, languages, premises)
    write_columns(folder / "test-en.tsv", ENGLISH[::-1])
    with pytest.raises(UserError, match="the examples in de do not translate those in en one by one; measure without"):
        read(folder, "de", "en")
    unlabelled = write_jsonl(tmp_path / "hidden" / "snli_test.jsonl", [("a", "b", "-")])
    with pytest.raises(UserError, match="no labelled pairs; measure on a split that is published with its labels"):
        read(unlabelled)
