from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.encoders import Loaded, Precomputed, SentenceList, check_languages, open_encoder
from xrep.inference.sentence_encoder import SentenceEncoder

SENTENCES = [("de", "Wir trinken Wasser."), ("en", "We drink water."), ("en", "Chat"), ("fr", "Chat")]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Write a folder of precomputed vectors, [4, 3]."""
    folder = tmp_path / "vectors"
    folder.mkdir()
    np.save(folder / "vectors.npy", np.arange(12, dtype=np.float16).reshape(4, 3) + 1)
    text = "".join(f"{language}\t{sentence}\n" for language, sentence in SENTENCES)
    (folder / "sentences.tsv").write_text(text, encoding="utf-8")
    return folder


def test_vectors_are_found_by_language_and_text_in_any_order(vectors: Path) -> None:
    encoder = open_encoder(vectors)
    assert isinstance(encoder, Precomputed) and encoder.training_hashes is None
    found = encoder.encode(["Chat", "We drink water.", "Chat"], "eng", normalize=False)
    assert found.dtype == np.float32
    assert found.tolist() == [[7, 8, 9], [4, 5, 6], [7, 8, 9]]
    assert encoder.encode(["Chat"], "fr", normalize=False).tolist() == [[10, 11, 12]]
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(["Chat"], "fr"), axis=1), 1, rtol=1e-6)
    before = encoder.fingerprint()
    np.save(vectors / "vectors.npy", np.ones((4, 3)))
    assert open_encoder(vectors).fingerprint() != before


def test_a_sentence_without_a_vector_is_named(vectors: Path) -> None:
    with pytest.raises(
        UserError, match="no vector for 2 of 3 sentences of de, the first is 'Chat'; .*`list_sentences`"
    ):
        open_encoder(vectors).encode(["Chat", "Wir trinken Wasser.", "Nein."], "de")


def _damage(folder: Path, how: str) -> None:
    array, text = np.ones((4, 3)), (folder / "sentences.tsv").read_text(encoding="utf-8")
    array = {"rows": array[:3], "width": array[0], "integers": array.astype(int)}.get(how, array)
    if how == "objects":
        array = np.array([{}] * 4, dtype=object)
    np.save(folder / "vectors.npy", array, allow_pickle=how == "objects")
    if how == "no array":
        (folder / "vectors.npy").write_text("1 2 3")
    text = {"tab": text.replace("\tChat", " Chat"), "twice": text.replace("fr\t", "en\t")}.get(how, text)
    (folder / "sentences.tsv").write_text(text, encoding="utf-8")
    if how == "no sentences":
        (folder / "sentences.tsv").unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("rows", "sentences.tsv: 4 lines, but vectors.npy has 3 rows"),
        ("width", r"not an array \[N, D\] of floats"),
        ("integers", r"not an array \[N, D\] of floats"),
        ("objects", "not a file of vectors"),
        ("no array", "not a file of vectors"),
        ("tab", "sentences.tsv:3: no tab in the line"),
        ("twice", "sentences.tsv:4: the sentence is also in line 3"),
        ("no sentences", "sentences.tsv: no such file"),
    ],
)
def test_a_damaged_folder_of_vectors_is_one_clear_line(vectors: Path, how: str, message: str) -> None:
    _damage(vectors, how)
    with pytest.raises(UserError, match=message) as error:
        open_encoder(vectors)
    assert "\n" not in str(error.value)


def test_vectors_that_are_not_finite_are_counted(vectors: Path) -> None:
    array = np.ones((4, 3))
    array[2, 1] = np.nan
    np.save(vectors / "vectors.npy", array)
    encoder = open_encoder(vectors)
    with pytest.raises(UserError, match=r"vectors.npy: 1 of 2 vectors are not finite"):
        encoder.encode(["We drink water.", "Chat"], "en")
    encoder.encode(["We drink water."], "en")


def test_listed_sentences_encoded_elsewhere_give_the_same_vectors(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "run" / "best")
    direct, listed = open_encoder(path), SentenceList()
    asked = [("de", ["ein Haus", "zwei\nHäuser", "ein Haus"]), ("en", ["a house", "ein Haus"]), (None, ["x"])]
    for language, sentences in asked:
        assert listed.encode(sentences, language).shape == (len(sentences), 64)
    assert len(listed) == 5
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    listed.write(folder / "sentences.tsv")
    rows = [line.split("\t") for line in (folder / "sentences.tsv").read_text(encoding="utf-8").splitlines()]
    np.save(folder / "vectors.npy", np.concatenate([direct.encode([text], lang or None) for lang, text in rows]))
    for language, sentences in asked:
        np.testing.assert_allclose(
            open_encoder(folder).encode(sentences, language), direct.encode(sentences, language), atol=1e-5
        )


class Counting:
    """An encoder that counts the sentences it encodes."""

    training_hashes, languages = None, []

    def __init__(self, path: Path) -> None:
        self.encoder, self.encoded = SentenceEncoder.load(path), 0
        self.fingerprint, self.output_size = self.encoder.fingerprint, self.encoder.output_size

    def encode(self, sentences, *options, **named) -> np.ndarray:
        self.encoded += len(sentences)
        return self.encoder.encode(sentences, *options, **named)


def test_kept_vectors_are_taken_for_the_same_question_only(tmp_path: Path) -> None:
    cache, sentences = tmp_path / "cache", ["ein Haus", "zwei Häuser"]
    best = write_encoder(tmp_path / "a" / "best", normalize=False)
    other = write_encoder(tmp_path / "b" / "best", normalize=False, seed=3)
    encoder = Counting(best)
    loaded = Loaded(str(best), encoder, cache=cache)
    first = loaded.encode(sentences, "de")
    np.testing.assert_array_equal(loaded.encode(sentences, "deu"), first)
    np.testing.assert_array_equal(Loaded(str(best), encoder, cache=cache).encode(sentences, "de"), first)
    assert encoder.encoded == 2
    loaded.encode(sentences, "de", normalize=False)
    loaded.encode(sentences[::-1], "de")
    loaded.encode(["ein Hauszwei", " Häuser"], "de")
    assert encoder.encoded == 8
    changed = Loaded(str(other), SentenceEncoder.load(other), cache=cache).encode(sentences, "de")
    assert not np.allclose(changed, first)
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match="not a file of kept vectors, or a truncated one; delete it"):
        loaded.encode(sentences, "de")


def test_a_model_that_gives_no_numbers_is_refused(tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "best"))
    next(encoder.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="2 of 2 vectors are not finite; take an earlier checkpoint"):
        Loaded("run1/best", encoder, cache=tmp_path / "cache").encode(["a", "b"], "de")
    assert not list((tmp_path / "cache").iterdir())


def test_every_language_without_a_tower_is_named(ngram_encoder) -> None:
    asked = {"en": "yes", "de": "ja", "fr": "oui", "zh": "是"}
    check_languages(ngram_encoder(), asked)
    with pytest.raises(UserError, match=r"cannot encode fr zh \(.*\); give `langs` de$"):
        check_languages(ngram_encoder(known=["de", "en"]), asked)
