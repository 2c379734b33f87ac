from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation import nearest
from xrep.evaluation.encoders import Precomputed
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli.eval import main

SENTENCES = [english for _, english in sentence_pairs(120)]


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("chunk", [1, 7, 50, 16384])
def test_the_nearest_are_those_of_the_whole_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ngram_encoder, chunk: int
) -> None:
    monkeypatch.setattr(nearest, "CHUNK_LINES", chunk)
    monkeypatch.setattr(nearest, "_QUERIES", 2)
    lines = [*SENTENCES[:60], "", SENTENCES[3], "  ", *SENTENCES[60:], SENTENCES[3]]
    files = [_write(tmp_path / "a.en", lines[:50]), _write(tmp_path / "b.en", lines[50:])]
    queries = ["the old man sees a red house", SENTENCES[3], "her teacher paints the cold river", "zzz", "a"]
    encoder = ngram_encoder()
    hits = nearest.nearest(encoder, queries, files, top=9)
    similarity = encoder.encode(queries) @ encoder.encode(SENTENCES).T
    for query, row, found in zip(queries, similarity, hits, strict=True):
        order = [i for i in np.argsort(-row, kind="stable") if SENTENCES[i] != query][:9]
        assert [hit.sentence for hit in found] == [SENTENCES[i] for i in order]
        np.testing.assert_allclose([hit.similarity for hit in found], row[order], atol=1e-6)
        for hit in found:
            text = Path(hit.file).read_text(encoding="utf-8").splitlines()
            assert text[hit.line - 1] == hit.sentence
            assert lines.index(hit.sentence) == hit.line - 1 + 50 * hit.file.endswith("b.en")  # its first occurrence


@pytest.mark.parametrize("chunk", [20, 16384])
def test_repeated_sentences_do_not_push_out_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ngram_encoder, chunk: int
) -> None:
    monkeypatch.setattr(nearest, "CHUNK_LINES", chunk)
    known, new = SENTENCES[:20], SENTENCES[20:40]
    lines = [*known, *(line for both in zip(known, new, strict=True) for line in both)]
    file, query, encoder = _write(tmp_path / "text", lines), SENTENCES[0], ngram_encoder()
    (found,) = nearest.nearest(encoder, [query], [file], top=8)
    similarity = encoder.encode(SENTENCES[:40]) @ encoder.encode([query])[0]
    expected = [SENTENCES[i] for i in np.argsort(-similarity, kind="stable")[1:9]]
    assert [(hit.sentence, hit.line) for hit in found] == [(line, lines.index(line) + 1) for line in expected]
    assert {hit.line <= 20 for hit in found} == {True, False}


def test_of_equally_near_sentences_the_earlier_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Equal:
        path, training_hashes = "equal", None

        def encode(self, sentences: list[str], lang: str | None = None, **options) -> np.ndarray:
            return np.ones((len(sentences), 1), np.float32)

    file = _write(tmp_path / "text", [f"sentence {i}" for i in range(40)])
    for chunk in (3, 100):
        monkeypatch.setattr(nearest, "CHUNK_LINES", chunk)
        (found,) = nearest.nearest(Equal(), ["query"], [file], top=5)
        assert [hit.line for hit in found] == [1, 2, 3, 4, 5]


def test_queries_of_the_command_line_and_of_a_file(tmp_path: Path) -> None:
    file = _write(tmp_path / "queries", ["two", "", "one", "three"])
    assert nearest.read_queries(["one", " ", "one"], file) == ["one", "two", "three"]
    with pytest.raises(UserError, match="no query; give `query`"):
        nearest.read_queries([" "], None)


def test_too_few_sentences_and_wrong_numbers_are_one_clear_line(tmp_path: Path, ngram_encoder) -> None:
    file = _write(tmp_path / "text", ["one", "two", "", "two"])
    assert len(nearest.nearest(ngram_encoder(), ["three"], [file], top=2)[0]) == 2
    for queries, top, message in (
        (["three"], 3, "text: `top` 3, but 2 different sentences to find; give a smaller `top`"),
        (["three", "one"], 2, "`top` 2, but 1 different sentences"),
    ):
        with pytest.raises(UserError, match=message):
            nearest.nearest(ngram_encoder(), queries, [file], top=top)
    with pytest.raises(UserError, match="`top` 0; give at least 1"):
        nearest.Neighbours(nearest.Neighbours.Config(data=[str(file)], query=["three"], top=0)).read()
    with pytest.raises(UserError, match="absent: no such file"):
        nearest.nearest(ngram_encoder(), ["one"], [tmp_path / "absent"], top=1)
    with pytest.raises(UserError, match="cannot encode fr"):
        nearest.nearest(ngram_encoder(known=["de"]), ["one"], [file], top=1, lang="de", text_lang="fr")


def test_vectors_of_another_system_in_two_languages(tmp_path: Path) -> None:
    """The system has vectors of the queries in one language and of the text in the other."""
    file = _write(tmp_path / "text", ["the house", "a tree"])
    _write(tmp_path / "sentences.tsv", ["de\tdas Haus", "en\tthe house", "en\ta tree"])
    np.save(tmp_path / "vectors.npy", np.array([[1, 0.1], [1, 0], [0, 1]], dtype=np.float32))
    (hits,) = nearest.nearest(Precomputed(tmp_path), ["das Haus"], [file], top=2, lang="de", text_lang="en")
    assert [hit.sentence for hit in hits] == ["the house", "a tree"]


def test_the_command_finds_across_languages(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    corpus = _write(tmp_path / "corpus.en", SENTENCES)
    german = [pair[0] for pair in sentence_pairs(2)]
    queries = _write(tmp_path / "queries.de", german[1:])
    path = write_encoder(tmp_path / "run", towers="separate")
    options = ["neighbours", "--path", str(path), "--data", str(corpus), "--query", german[0]]
    options += ["--query-file", str(queries), "--lang", "deu", "--data-lang", "en", "--top", "4"]
    assert main([*options, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    encoder = SentenceEncoder.load(path)
    similarity = encoder.encode(german, "de") @ encoder.encode(SENTENCES, "en").T
    assert [query["query"] for query in result["values"]["queries"]] == german
    for query, row in zip(result["values"]["queries"], similarity, strict=True):
        np.testing.assert_allclose([hit["similarity"] for hit in query["nearest"]], -np.sort(-row)[:4], atol=1e-5)
    assert result["overlap"] is None and len(result["data"]) == 2
    assert main(options) == 0
    printed = capsys.readouterr().out.splitlines()
    first = result["values"]["queries"][0]["nearest"][0]
    assert printed[0] == f"query: {german[0]}"
    assert printed[1] == f"{first['similarity']:6.3f}  {corpus}:{first['line']}  {first['sentence']}"
    assert main([*options, "--query", "x", "--data-lang", "fr"]) == 2
    assert "cannot encode fr" in capsys.readouterr().err
