import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, open_encoder, with_random_weights, write_sentences
from xrep.inference.sentence_encoder import SentenceEncoder

SENTENCES = ["unser Nachbar malt", "her teacher sees a red house", "das Buch"]


def test_vectors_are_found_by_language_and_text_in_any_order(tmp_path: Path) -> None:
    rows, given = tmp_path / "sentences.tsv", np.arange(12, dtype=np.float16).reshape(4, 3) + 1
    listed = ("de", ["Wir\ntrinken."]), ("en", ["We drink.", "Chat", "We drink."]), ("fr", ["Chat"])
    count = write_sentences(rows, listed)
    text = rows.read_text(encoding="utf-8")
    assert text == "de\tWir trinken.\nen\tWe drink.\nen\tChat\nfr\tChat\n" and count == 4
    np.save(tmp_path / "vectors.npy", given)
    encoder = open_encoder(tmp_path)
    found = encoder.encode(["Chat", "We drink.", "Chat"], "eng", normalize=False)
    assert found.dtype == np.float32 and found.tolist() == [[7, 8, 9], [4, 5, 6], [7, 8, 9]]
    assert encoder.encode(["Chat"], "fr", normalize=False).tolist() == [[10, 11, 12]]
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(["Wir\ntrinken."], "de"), axis=1), 1, rtol=1e-6)
    with pytest.raises(UserError, match="no vector for 2 of 3 sentences of de, the first is 'Chat'; .*`list_sentences"):
        encoder.encode(["Chat", "Wir trinken.", "Nein."], "de")
    before, given[2, 1] = encoder.fingerprint(), np.nan
    np.save(tmp_path / "vectors.npy", given)
    encoder = open_encoder(tmp_path)
    assert encoder.fingerprint() != before
    with pytest.raises(UserError, match=r"1 of 2 vectors are not finite; .*, or check the system that made them"):
        encoder.encode(["We drink.", "Chat"], "en")
    for count, old, new, message in (
        (3, "", "", "sentences.tsv: 4 lines, but vectors.npy has 3 rows"),
        (4, "\tChat", " Chat", "sentences.tsv:3: no tab in the line"),
    ):
        np.save(tmp_path / "vectors.npy", np.ones((count, 3)))
        rows.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            open_encoder(tmp_path)


def test_kept_vectors_are_taken_for_the_same_question_only(shared_encoder, tmp_path, monkeypatch):
    cache, sentences, asked, encode = tmp_path / "cache", ["ein Haus", "zwei Häuser"], [], SentenceEncoder.encode
    monkeypatch.setattr(SentenceEncoder, "encode", lambda *given, **more: (asked.append(1), encode(*given, **more))[1])
    loaded, again = (open_encoder(shared_encoder, cache=cache) for _ in range(2))
    first = loaded.encode(sentences, "de")
    for encoder, language in ((loaded, "deu"), (again, "de")):
        np.testing.assert_array_equal(encoder.encode(sentences, language), first)
    assert len(asked) == 1
    whole = loaded.encode([*sentences, sentences[0]], "de", normalize=False)
    assert len(asked) == 1 and len(whole) == 3
    np.testing.assert_allclose(encode(loaded.encoder, sentences, "de"), first, atol=1e-6)
    (kept,) = cache.iterdir()
    np.testing.assert_array_equal(open_encoder(kept).encode(sentences, "de"), first)  # as vectors of another system
    loaded.encode(sentences[::-1], "de")
    loaded.encode(["ein Hauszwei", " Häuser"], "de")
    assert len(asked) == 3
    long = [" ".join(["Haus"] * 10_000), "b"]  # which is longer in the list, behind its language
    np.testing.assert_array_equal(*(loaded.encode(long, "de") for _ in range(2)))
    other = open_encoder(write_encoder(tmp_path / "best", seed=3), cache=cache)
    assert not np.allclose(other.encode(sentences, "de"), first)
    broken, kept = SentenceEncoder.load(shared_encoder), set(cache.iterdir())
    next(broken.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="2 of 2 vectors are not finite; take an earlier checkpoint, or"):
        MeasuredEncoder("run1/best", broken, cache=cache).encode(["a", "b"], "de")
    assert set(cache.iterdir()) == kept


# -- layers other than the last one ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_layer_is_pooled_measured_and_exported(shared_encoder, tatoeba_folder, tmp_path, cli):
    last, embeddings = (SentenceEncoder.load(shared_encoder, device="cpu", layer=layer) for layer in (1, 0))
    whole = SentenceEncoder.load(shared_encoder, device="cpu")
    np.testing.assert_allclose(last.encode(SENTENCES), whole.encode(SENTENCES), atol=1e-6)
    vocabulary, table = whole.text.vocabulary("shared"), whole.model.encoders["shared"]
    ids = [vocabulary.bos_id, *whole.tokenizers["shared"].encode(SENTENCES[:1])[0], vocabulary.eos_id]
    with torch.no_grad():
        expected = table.embed(table.token_embedding(torch.tensor(ids)), torch.arange(len(ids))).mean(0).numpy()
    found = embeddings.encode(SENTENCES)
    np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), atol=1e-5)
    assert len({each.fingerprint() for each in (last, embeddings, whole)}) == 3
    drawn = with_random_weights(open_encoder(shared_encoder, layer=0), 3)
    expected = SentenceEncoder.load(shared_encoder, random_weights=3, layer=0).encode(SENTENCES)
    np.testing.assert_allclose(drawn.encode(SENTENCES), expected, atol=1e-6)

    assert cli("export", "--path", shared_encoder, "--layer", 0, "--output", "exported").code == 0
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path / "exported").encode(SENTENCES), found, atol=1e-6)
    records = []
    for path, *layer in ((shared_encoder, "--layer", 0), ("exported",)):
        line = ["tatoeba", "--path", path, *layer, "--data", tatoeba_folder, "--json", "out.json"]
        assert cli("eval", *line).code == 0
        records.append(json.loads((tmp_path / "out.json").read_text()))
    assert records[0]["values"] == records[1]["values"]
    assert records[0]["settings"]["layer"] == 0 and records[0]["model"]["fingerprint"] == embeddings.fingerprint()


def test_a_projection_belongs_to_the_layer_it_was_trained_for(shared_encoder: Path) -> None:
    with pytest.raises(UserError, match="^`layer` 2 of an encoder of 1 layers; choose one of 0 to 1$"):
        SentenceEncoder.load(shared_encoder, layer=2)
    model = SentenceEncoder.load(shared_encoder).model
    model.projections["shared"] = model.encoders["shared"].layers[0]
    model.use_layer(1)
    with pytest.raises(UserError, match="whose projection was trained for another layer; export it with"):
        model.use_layer(0)
