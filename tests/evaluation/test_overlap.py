from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import measured
from xrep.errors import UserError
from xrep.evaluation.evaluation import Figures
from xrep.evaluation.overlap import Overlap, find_overlap, load_training_hashes, seen, total
from xrep.evaluation.tatoeba import Tatoeba, read_pool
from xrep.text.cleaning import sentence_hashes


def _save(path: Path, sentences: list[str]) -> Path:
    np.save(path, np.unique(sentence_hashes(sentences)))
    return path


TRAINED = [
    "ＭＡＲＩＡ wohnt - seit 1998 - in Berlin",  # full-width capitals and other punctuation: the same sentence
    "did you READ the book",  # the English side of another German pair
    "Tom lives in Boston.",
    "Tom lebt.",
    "!?",
]


def _measured(folder: Path, encoder: object, **options: object) -> Figures:
    return measured(Tatoeba, encoder, data=str(folder), langs="deu,cmn", **options)


def test_a_pair_counts_once_whichever_side_was_seen_in_whatever_spelling(
    tatoeba_folder: Path, ngram_encoder, tmp_path: Path
) -> None:
    encoder = ngram_encoder(training_hashes=_save(tmp_path / "hashes.npy", TRAINED))
    figures = _measured(tatoeba_folder, encoder)
    assert figures.overlap == Overlap(3, 10)
    assert figures.printed().splitlines()[-1].startswith("overlap: 3 of 10 ")
    assert {language: own["pairs"] for language, own in figures.values["languages"].items()} == {"de": 6, "zh": 4}
    assert figures.values == _measured(tatoeba_folder, ngram_encoder()).values


def test_dropped_pairs_are_in_neither_pool(tatoeba_folder: Path, ngram_encoder, tmp_path: Path) -> None:
    encoder = ngram_encoder(training_hashes=_save(tmp_path / "hashes.npy", TRAINED))
    kept = str(tmp_path / "vectors")
    figures = _measured(tatoeba_folder, encoder, drop_overlap=True, save_embeddings=kept)
    assert figures.overlap == Overlap(3, 10, dropped=True)
    assert {language: own["pairs"] for language, own in figures.values["languages"].items()} == {"de": 4, "zh": 3}
    german, chinese = (read_pool(tatoeba_folder, code) for code in ("deu", "cmn"))
    for name, sentences, rows in (
        ("deu.deu", german.sentences, [1, 2, 3, 5]),
        ("deu.eng", german.english, [1, 2, 3, 5]),
        ("cmn.eng", chinese.english, [1, 2, 3]),
    ):
        expected = encoder.encode([sentences[row] for row in rows])
        np.testing.assert_allclose(np.load(f"{kept}/{name}.npy"), expected, atol=1e-6)


def test_without_hashes_the_overlap_is_unknown_and_cannot_be_dropped(tatoeba_folder: Path, ngram_encoder) -> None:
    printed = _measured(tatoeba_folder, ngram_encoder()).printed()
    assert printed.endswith("\noverlap: unknown (no training hashes beside the encoder)")
    with pytest.raises(UserError, match="no training hashes.*without `drop_overlap`"):
        _measured(tatoeba_folder, ngram_encoder(), drop_overlap=True)


def test_a_language_that_was_trained_on_whole_cannot_be_searched(
    tatoeba_folder: Path, ngram_encoder, tmp_path: Path
) -> None:
    seen_before = read_pool(tatoeba_folder, "deu").english[:5]
    encoder = ngram_encoder(training_hashes=_save(tmp_path / "hashes.npy", seen_before))
    with pytest.raises(
        UserError, match="5 of 6 examples of deu were in the training text, too few are left; measure without"
    ):
        _measured(tatoeba_folder, encoder, drop_overlap=True)


def test_a_sentence_without_words_was_never_seen(tmp_path: Path) -> None:
    hashes = load_training_hashes(_save(tmp_path / "hashes.npy", ["...", "Yes."]))
    assert seen(["?!", "YES", "no"], hashes).tolist() == [False, True, False]
    assert seen(["?!", "YES"], np.empty(0, np.uint64)).tolist() == [False, False]


def test_columns_are_counted_by_row_and_tests_add_up(tmp_path: Path) -> None:
    hashes = _save(tmp_path / "hashes.npy", ["a b", "c d"])
    keep, overlap = find_overlap(hashes, ["A b!", "x", "y"], ["c, d", "z", "C D"], drop=True)
    assert keep.tolist() == [False, True, False] and overlap == Overlap(2, 3, dropped=True)
    keep, overlap = find_overlap(hashes, ["A b!", "x"])
    assert keep.all() and overlap == Overlap(1, 2)
    assert total([overlap, Overlap(3, 4)]) == Overlap(4, 6)
    assert total([overlap, Overlap(None, 4)]) == Overlap(None, 6)


def test_hashes_are_mapped_not_read(tmp_path: Path) -> None:
    hashes = load_training_hashes(_save(tmp_path / "hashes.npy", [f"sentence {i}" for i in range(1000)]))
    assert isinstance(hashes, np.memmap)
    assert seen([f"Sentence {i}!" for i in range(500, 1500)], hashes).sum() == 500


@pytest.mark.parametrize("content", ["text", "float", "truncated", "pickle", "absent"])
def test_a_damaged_file_of_hashes_is_one_clear_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "hashes.npy"
    if content == "text":
        path.write_text("not an array")
    elif content == "float":
        np.save(path, np.ones(5))
    elif content == "truncated":
        np.save(path, np.arange(1000, dtype=np.uint64))
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "pickle":
        np.save(path, np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"hashes.npy: (not a file of training hashes|no such file)"):
        load_training_hashes(path)
