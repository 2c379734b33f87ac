from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured, save_hashes
from xrep.errors import UserError
from xrep.evaluation.overlap import Overlap, find_overlap, load_training_hashes, seen, total
from xrep.evaluation.tatoeba import Tatoeba, read_pool


def test_dropped_pairs_are_in_neither_pool(tatoeba_folder: Path, tmp_path: Path) -> None:
    trained = ["ＭＡＲＩＡ wohnt - seit 1998 - in Berlin", "did you READ the book", "Tom lives in Boston.", "Tom lebt."]
    encoder = NgramEncoder(training_hashes=save_hashes(tmp_path, trained))
    given = {"data": str(tatoeba_folder), "langs": "deu,cmn", "drop_overlap": True}
    figures = measured(Tatoeba, encoder, **given, save_embeddings=str(tmp_path / "vectors"))
    assert figures.overlap == Overlap(3, 10, dropped=True)
    assert {language: own["pairs"] for language, own in figures.values["languages"].items()} == {"de": 4, "zh": 3}
    german, chinese = (read_pool(tatoeba_folder, code) for code in ("deu", "cmn"))
    for name, sentences, rows in (
        ("deu.deu", german.sentences, [1, 2, 3, 5]),
        ("deu.eng", german.english, [1, 2, 3, 5]),
        ("cmn.eng", chinese.english, [1, 2, 3]),
    ):
        expected = encoder.encode([sentences[row] for row in rows])
        np.testing.assert_allclose(np.load(tmp_path / "vectors" / f"{name}.npy"), expected, atol=1e-6)
    encoder.training_hashes = save_hashes(tmp_path, german.english[:5])
    with pytest.raises(UserError, match="5 of 6 examples of deu were in the training text, too few are left; measure"):
        measured(Tatoeba, encoder, **given)


def test_a_sentence_without_words_was_never_seen(tmp_path: Path) -> None:
    hashes = load_training_hashes(save_hashes(tmp_path, ["...", "Yes."]))
    assert seen(["?!", "YES", "no"], hashes).tolist() == [False, True, False]
    assert seen(["?!", "YES"], np.empty(0, np.uint64)).tolist() == [False, False]


def test_columns_are_counted_by_row_and_tests_add_up(tmp_path: Path) -> None:
    hashes = save_hashes(tmp_path, ["a b", "c d"])
    keep, overlap = find_overlap(hashes, ["A b!", "x", "y"], ["c, d", "z", "C D"], drop=True)
    assert keep.tolist() == [False, True, False] and overlap == Overlap(2, 3, dropped=True)
    assert overlap.line == "overlap: 2 of 3 test examples were in the training text, left out"
    keep, overlap = find_overlap(hashes, ["A b!", "x"])
    assert keep.all() and overlap == Overlap(1, 2)
    assert total([overlap, Overlap(3, 4)]) == Overlap(4, 6)
    assert total([overlap, Overlap(None, 4)]) == Overlap(None, 6)


def test_hashes_are_mapped_not_read(tmp_path: Path) -> None:
    hashes = load_training_hashes(save_hashes(tmp_path, [f"sentence {i}" for i in range(1000)]))
    assert isinstance(hashes, np.memmap)
    assert seen([f"Sentence {i}!" for i in range(500, 1500)], hashes).sum() == 500
    np.save(tmp_path / "hashes.npy", np.ones(5))
    with pytest.raises(UserError, match=r"hashes.npy: not a file of training hashes"):
        load_training_hashes(tmp_path / "hashes.npy")
