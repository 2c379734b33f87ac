"""Accuracy of a classifier on inference data of several languages."""

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured
from tests.support.nli_data import Row, nli_rows, write, write_columns
from xrep.criteria.nli import Nli
from xrep.errors import UserError
from xrep.evaluation import nli
from xrep.text.nli import LABELS

GERMAN, ENGLISH = nli_rows(10, "de", seed=3), nli_rows(10, seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_columns(tmp_path / "test-de.tsv", GERMAN)
    write_columns(tmp_path / "test-en.tsv", ENGLISH)
    return tmp_path


def by_hand(classifier: Nli, encoder: NgramEncoder, rows: list[Row], languages: tuple[str, str]) -> float:
    """Return the accuracy in percent, in float64."""
    weight, bias = (tensor.detach().double().numpy() for tensor in classifier.output.parameters())
    right = []
    for *pair, label in rows:
        sides = zip(pair, languages, strict=True)
        u, v = (encoder.encode([text], lang, normalize=False)[0].astype(np.float64) for text, lang in sides)
        logits = weight @ np.concatenate([u, v, np.abs(u - v), u * v]) + bias
        right.append(LABELS[int(logits.argmax())] == label)
    return 100 * float(np.mean(right))


def test_every_language_is_measured(folder: Path, classifier: Nli) -> None:
    encoder = NgramEncoder(known=["de", "en"])
    german, english = (by_hand(classifier, encoder, own, (x, x)) for x, own in (("de", GERMAN), ("en", ENGLISH)))
    assert german != english
    figures = measured(nli.NliAccuracy, encoder, data=str(folder))
    accuracies = {language: own["accuracy"] for language, own in figures.values["tables"].items()}
    assert accuracies == pytest.approx({"de": german, "en": english})
    mean = figures.headline["mean of 2"]
    assert mean == pytest.approx((german + english) / 2)
    drawn = figures.resamples["mean of 2"]
    assert drawn.mean() == pytest.approx(mean, abs=1) and drawn.std() > 1
    lines = figures.text.splitlines()
    assert lines[2].split() == ["German", "(de)", "30", f"{german:.2f}"]
    assert lines[-1].split() == ["mean", "of", "2", "60", f"{mean:.2f}"]
    with pytest.raises(UserError, match=r"cannot encode de en \(.*\); leave them out of `langs`, or name another"):
        measured(nli.NliAccuracy, NgramEncoder(known=["fr"]), data=str(folder))


def test_premises_of_another_language(folder: Path, classifier: Nli) -> None:
    encoder = NgramEncoder(known=["de", "en"])
    crossed = [(one[0], *other[1:]) for one, other in zip(ENGLISH, GERMAN, strict=True)]
    figures = measured(nli.NliAccuracy, encoder, data=str(folder), premise_lang="eng")
    assert list(figures.values["tables"]) == ["en-de", "en"] and "English, German (en-de)" in figures.text
    expected = by_hand(classifier, encoder, crossed, ("en", "de"))
    assert figures.values["tables"]["en-de"]["accuracy"] == pytest.approx(expected)
    for premise_lang, names in ((None, ["test-de.tsv"]), ("en", ["test-de.tsv", "test-en.tsv"])):
        figures = measured(nli.NliAccuracy, encoder, data=str(folder), langs="deu", premise_lang=premise_lang)
        assert sorted(file.name for file in figures.files) == names
    write_columns(folder / "test-en.tsv", ENGLISH[::-1])
    with pytest.raises(UserError, match="the examples in de do not translate those in en one by one; measure without"):
        measured(nli.NliAccuracy, encoder, data=str(folder), langs="de", premise_lang="en")


def test_two_sets_are_not_measured_as_one(tmp_path: Path) -> None:
    for name in ("multinli_dev_matched.tsv", "multinli_dev_mismatched.tsv"):
        write_columns(tmp_path / name, ENGLISH)
    with pytest.raises(UserError, match="2 test sets: multinli_dev_matched.tsv, .*; name one file with `data`"):
        nli.NliAccuracy(nli.NliAccuracy.Config(data=str(tmp_path), split="dev")).read()
    config = nli.NliAccuracy.Config(data=str(tmp_path / "multinli_dev_matched.tsv"), split="dev")
    assert len(nli.NliAccuracy(config).tables[0]) == len(ENGLISH)


def test_rows_that_name_their_language(tmp_path: Path) -> None:
    texts = (("sw", ENGLISH), ("de", GERMAN))
    rows = [f"{label}\t{lang}\t{one}\t{two}" for lang, own in texts for one, two, label in own]
    file = write(tmp_path / "xnli.test.tsv", ["gold_label\tlanguage\tsentence1\tsentence2", *rows])
    crossed, _ = nli.NliAccuracy(nli.NliAccuracy.Config(data=str(file), premise_lang="sw")).tables
    assert crossed.name == "sw-de" and crossed.languages == ("sw", "de")
    assert crossed.columns == ([row[0] for row in ENGLISH], [row[1] for row in GERMAN])
    assert [LABELS[label] for label in crossed.gold] == [row[2] for row in GERMAN]
