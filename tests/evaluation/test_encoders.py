from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.conftest import NgramEncoder, write
from tests.support.commands import Commands
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.encoders import (
    Loaded,
    Precomputed,
    SentenceList,
    check_languages,
    open_encoder,
    with_random_weights,
)
from xrep.inference.sentence_encoder import SentenceEncoder

SENTENCES = ["unser Nachbar malt", "her teacher sees a red house", "das Buch"]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Write a folder of precomputed vectors, [4, 3]."""
    lines = ["de\tWir trinken Wasser.", "en\tWe drink water.", "en\tChat", "fr\tChat"]
    folder = write(tmp_path / "vectors" / "sentences.tsv", lines).parent
    np.save(folder / "vectors.npy", np.arange(12, dtype=np.float16).reshape(4, 3) + 1)
    return folder


def test_vectors_are_found_by_language_and_text_in_any_order(vectors: Path) -> None:
    encoder = open_encoder(vectors)
    assert isinstance(encoder, Precomputed) and encoder.training_hashes is None
    found = encoder.encode(["Chat", "We drink water.", "Chat"], "eng", normalize=False)
    assert found.dtype == np.float32 and found.tolist() == [[7, 8, 9], [4, 5, 6], [7, 8, 9]]
    assert encoder.encode(["Chat"], "fr", normalize=False).tolist() == [[10, 11, 12]]
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(["Chat"], "fr"), axis=1), 1, rtol=1e-6)
    with pytest.raises(UserError, match="no vector for 2 of 3 sentences of de, the first is 'Chat'; .*`list_sentences"):
        encoder.encode(["Chat", "Wir trinken Wasser.", "Nein."], "de")
    before, array = encoder.fingerprint(), np.ones((4, 3))
    array[2, 1] = np.nan
    np.save(vectors / "vectors.npy", array)
    encoder = open_encoder(vectors)
    assert encoder.fingerprint() != before
    with pytest.raises(UserError, match=r"vectors.npy: 1 of 2 vectors are not finite"):
        encoder.encode(["We drink water.", "Chat"], "en")
    encoder.encode(["We drink water."], "en")


def test_vectors_and_lines_that_do_not_belong_together(vectors: Path) -> None:
    text = (vectors / "sentences.tsv").read_text(encoding="utf-8")
    for rows, old, new, message in (
        (3, "", "", "sentences.tsv: 4 lines, but vectors.npy has 3 rows"),
        (4, "\tChat", " Chat", "sentences.tsv:3: no tab in the line"),
        (4, "fr\t", "en\t", "sentences.tsv:4: the sentence is also in line 3"),
    ):
        np.save(vectors / "vectors.npy", np.ones((rows, 3)))
        (vectors / "sentences.tsv").write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            open_encoder(vectors)


def test_sentences_are_listed_once_and_in_one_line(shared_encoder: Path, tmp_path: Path) -> None:
    direct, listed = open_encoder(shared_encoder), SentenceList()
    asked = [("de", ["ein Haus", "zwei\nHäuser", "ein Haus"]), ("en", ["a house", "ein Haus"]), (None, ["x"])]
    for language, sentences in asked:
        assert listed.encode(sentences, language).shape == (len(sentences), 64)
    listed.write(tmp_path / "sentences.tsv")
    rows = [line.split("\t") for line in (tmp_path / "sentences.tsv").read_text(encoding="utf-8").splitlines()]
    assert len(listed) == len(rows) == 5
    np.save(tmp_path / "vectors.npy", np.concatenate([direct.encode([text], lang or None) for lang, text in rows]))
    for language, sentences in asked:
        found = open_encoder(tmp_path).encode(sentences, language)
        np.testing.assert_allclose(found, direct.encode(sentences, language), atol=1e-5)


def test_kept_vectors_are_taken_for_the_same_question_only(
    shared_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, sentences, encoded, encode = tmp_path / "cache", ["ein Haus", "zwei Häuser"], [], SentenceEncoder.encode
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda *given, **more: (encoded.append(1), encode(*given, **more))[1]
    )
    loaded, again = (open_encoder(shared_encoder, cache=cache) for _ in range(2))
    first = loaded.encode(sentences, "de")
    np.testing.assert_array_equal(loaded.encode(sentences, "deu"), first)
    np.testing.assert_array_equal(again.encode(sentences, "de"), first)
    assert len(encoded) == 1
    loaded.encode(sentences, "de", normalize=False)
    loaded.encode(sentences[::-1], "de")
    loaded.encode(["ein Hauszwei", " Häuser"], "de")
    assert len(encoded) == 4
    other = open_encoder(write_encoder(tmp_path / "best", seed=3), cache=cache)
    assert not np.allclose(other.encode(sentences, "de"), first)


def test_a_model_that_gives_no_numbers_is_refused(shared_encoder: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(shared_encoder)
    next(encoder.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="2 of 2 vectors are not finite; take an earlier checkpoint"):
        Loaded("run1/best", encoder, cache=tmp_path / "cache").encode(["a", "b"], "de")
    assert not list((tmp_path / "cache").iterdir())


def test_every_language_without_a_tower_is_named() -> None:
    asked = {"en": "yes", "de": "ja", "fr": "oui", "zh": "是"}
    check_languages(NgramEncoder(), asked)
    with pytest.raises(UserError, match=r"cannot encode fr zh \(.*\); give `langs` de$"):
        check_languages(NgramEncoder(known=["de", "en"]), asked)
    with pytest.raises(UserError, match="cannot encode en .*name another encoder"):
        check_languages(NgramEncoder(known=["de", "zh", "fr"]), asked)


# -- layers other than the last one ------------------------------------------------------------------------------------


def test_a_layer_is_pooled(shared_encoder: Path) -> None:
    last, embeddings = (SentenceEncoder.load(shared_encoder, device="cpu", layer=layer) for layer in (1, 0))
    whole = SentenceEncoder.load(shared_encoder, device="cpu")
    np.testing.assert_allclose(last.encode(SENTENCES), whole.encode(SENTENCES), atol=1e-6)
    vocabulary, table = whole.text.vocabulary("shared"), whole.model.encoders["shared"]
    ids = [vocabulary.bos_id, *whole.tokenizers["shared"].encode(SENTENCES[:1])[0], vocabulary.eos_id]
    with torch.no_grad():
        expected = table.embed(torch.tensor(ids), torch.arange(len(ids))).mean(0).numpy()
    found = embeddings.encode(SENTENCES[:1], normalize=False)[0]
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=1e-5)
    assert len({each.fingerprint() for each in (last, embeddings, whole)}) == 3
    drawn = with_random_weights(open_encoder(shared_encoder, layer=0), 3)
    expected = SentenceEncoder.load(shared_encoder, random_weights=3, layer=0).encode(SENTENCES)
    np.testing.assert_allclose(drawn.encode(SENTENCES), expected, atol=1e-6)


@pytest.mark.slow
def test_an_evaluation_of_a_layer_is_that_of_its_export(
    shared_encoder: Path, tatoeba_folder: Path, tmp_path: Path, cli: Commands
) -> None:
    assert cli("export", "--path", shared_encoder, "--layer", 0, "--output", "exported").code == 0
    found = []
    for path, *layer in ((shared_encoder, "--layer", 0), ("exported",), (shared_encoder,)):
        line = ["tatoeba", "--path", path, *layer, "--data", tatoeba_folder, "--json", "out.json"]
        assert cli("eval", *line).code == 0
        found.append(json.loads((tmp_path / "out.json").read_text()))
    assert found[0]["values"] == found[1]["values"]
    assert found[0]["model"]["fingerprint"] != found[2]["model"]["fingerprint"]
    assert (found[0]["settings"]["layer"], found[2]["settings"]["layer"]) == (0, None)
    own, exported = SentenceEncoder.load(shared_encoder, layer=0), SentenceEncoder.load(tmp_path / "exported")
    np.testing.assert_allclose(own.encode(SENTENCES), exported.encode(SENTENCES), atol=1e-6)


def test_a_projection_belongs_to_the_layer_it_was_trained_for(shared_encoder: Path) -> None:
    with pytest.raises(UserError, match="^`layer` 2 of an encoder of 1 layers; choose one of 0 to 1$"):
        SentenceEncoder.load(shared_encoder, layer=2)
    model = SentenceEncoder.load(shared_encoder).model
    model.projections["shared"] = model.encoders["shared"].layers[0]
    model.pool_layer(1)
    with pytest.raises(UserError, match="whose projection was trained for another layer; export it with"):
        model.pool_layer(0)
