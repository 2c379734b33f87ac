from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured, write
from tests.support.corpus import sentence_pairs
from xrep.errors import UserError
from xrep.evaluation import nearest
from xrep.evaluation.encoders import Precomputed

SENTENCES = [english for _, english in sentence_pairs(120)]


@pytest.mark.parametrize("chunk", [1, 7, 16384])
def test_the_nearest_are_those_of_the_whole_product(tmp_path, monkeypatch, chunk):
    """Equal sentences count once, at their first occurrence, and the query itself does not count. Of equally near
    sentences, the earlier come first."""
    monkeypatch.setattr(nearest, "CHUNK_LINES", chunk)
    lines = [*SENTENCES[:60], "", SENTENCES[3], "  ", *SENTENCES[60:], *SENTENCES[:20], SENTENCES[3]]
    data = [str(write(tmp_path / "a.en", lines[:50])), str(write(tmp_path / "b.en", lines[50:]))]
    queries = ["the old man sees a red house", SENTENCES[3], "her teacher paints the cold river", "zzz", "a"]
    encoder = NgramEncoder()
    found = measured(nearest.Neighbours, encoder, query=queries, data=data, top=9).values["queries"]
    similarity = encoder.encode(queries) @ encoder.encode(SENTENCES).T
    for query, row, own in zip(queries, similarity, found, strict=True):
        order = [i for i in np.argsort(-row, kind="stable") if SENTENCES[i] != query][:9]
        assert own["query"] == query and [hit["sentence"] for hit in own["nearest"]] == [SENTENCES[i] for i in order]
        np.testing.assert_allclose([hit["similarity"] for hit in own["nearest"]], row[order], atol=1e-6)
        for hit in own["nearest"]:
            assert lines.index(hit["sentence"]) == hit["line"] - 1 + 50 * hit["file"].endswith("b.en")
    encoder.encode = lambda sentences, *given, **options: np.ones((len(sentences), 1), np.float32)
    (own,) = measured(nearest.Neighbours, encoder, query=["query"], data=data, top=5).values["queries"]
    assert [hit["line"] for hit in own["nearest"]] == [1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="`top` 500, but 120 different sentences"):
        measured(nearest.Neighbours, encoder, query=["query"], data=data, top=500)


def test_queries_and_text_of_two_languages(tmp_path: Path) -> None:
    """The system has vectors of the queries in one language and of the text in the other."""
    file = write(tmp_path / "text", ["the house", "a tree"])
    queries = write(tmp_path / "queries", ["das Haus", "", "das Dach"])
    write(tmp_path / "sentences.tsv", ["de\tdas Haus", "de\tdas Dach", "en\tthe house", "en\ta tree"])
    np.save(tmp_path / "vectors.npy", np.array([[1, 0.1], [0.1, 1], [1, 0], [0, 1]], dtype=np.float32))
    options = {"query": ["das Dach", " ", "das Dach"], "query_file": str(queries), "lang": "de", "data_lang": "en"}
    figures = measured(nearest.Neighbours, Precomputed(tmp_path), data=[str(file)], top=2, **options)
    found = [(own["query"], [hit["sentence"] for hit in own["nearest"]]) for own in figures.values["queries"]]
    assert found == [("das Dach", ["a tree", "the house"]), ("das Haus", ["the house", "a tree"])]
    assert figures.text.splitlines()[:2] == ["query: das Dach", f" 0.995  {file}:2  a tree"]
    assert figures.files == (file, queries) and figures.settings["data_lang"] == "en"
