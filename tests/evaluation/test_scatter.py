from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.conftest import measured
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.data.batching import collate
from xrep.errors import UserError
from xrep.evaluation import scatter
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.multilingual import Texts
from xrep_cli.eval import main

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(30), strict=True))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("scatter") / "best", towers="separate", vocabulary_size=90)


def test_pca_is_the_singular_value_decomposition_of_what_is_centred() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 9)) * np.arange(9, 0, -1) + 50
    points, explained = scatter.project(vectors.astype(np.float32), "pca")
    centred = vectors - vectors.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points), np.abs(u[:, :2] * s[:2]), atol=1e-3)
    assert explained == pytest.approx((s[:2] ** 2).sum() / (s**2).sum(), rel=1e-5)
    np.testing.assert_allclose(points.max(axis=0), np.abs(points).max(axis=0))
    np.testing.assert_allclose(scatter.project(vectors.astype(np.float32), "pca")[0], points)


def test_tsne_keeps_clusters_apart() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(size=(8, 10)), rng.normal(size=(8, 10)) + 30])
    points, explained = scatter.project(vectors, "tsne", seed=1)
    assert explained is None and points.shape == (16, 2)
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag([np.inf] * 16)
    assert (distances.argmin(axis=1) // 8 == np.arange(16) // 8).all()
    np.testing.assert_array_equal(scatter.project(vectors, "tsne", seed=1)[0], points)


def test_without_scikit_learn_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for method, message in (
        ("tsne", r"pip install 'xrep\[plot\]', or give `method` pca"),
        ("pca", "absent: no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            measured(scatter.Scatter, None, data="absent", plot="out.png", method=method)


def test_rows_are_drawn_whole() -> None:
    texts = Texts([{"de": GERMAN, "en": ENGLISH}, {"fr": ENGLISH[:10], "en": GERMAN[:10]}], [])
    groups = scatter.draw_rows(texts, 6, seed=3)
    assert scatter.draw_rows(texts, 6, seed=3) == groups != scatter.draw_rows(texts, 6, seed=4)
    for whole, drawn in zip(texts.groups, groups, strict=True):
        rows = list(zip(*drawn.values(), strict=True))
        assert set(rows) < set(zip(*whole.values(), strict=True)) and len(set(rows)) == 6
    for count in (11, 0):
        with pytest.raises(UserError, match=f"`sentences` {count}, but 10 of fr en with a translation; give 1 to 10"):
            scatter.draw_rows(texts, count)


def test_links_lead_from_english_to_its_translations(ngram_encoder) -> None:
    groups = [{"de": GERMAN[:3], "en": ENGLISH[:3], "fr": GERMAN[3:6]}, {"es": GERMAN[6:8], "en": ENGLISH[6:8]}]
    found = scatter.scatter(ngram_encoder(), groups, "pca")
    assert found.languages == ["de"] * 3 + ["en"] * 3 + ["fr"] * 3 + ["es"] * 2 + ["en"] * 2
    assert found.labels == ["1", "2", "3"] * 3 + ["4", "5"] * 2
    assert sorted(found.links) == [(3, 0), (3, 6), (4, 1), (4, 7), (5, 2), (5, 8), (11, 9), (12, 10)]
    assert found.sentences[1] == {"de": GERMAN[1], "en": ENGLISH[1], "fr": GERMAN[4]} and len(found.sentences) == 5
    text = scatter.text(found)
    assert text.startswith("13 sentences of de en fr es by pca; the two axes hold ")
    assert f"  5  es  {GERMAN[7]}" in text
    vectors = [ngram_encoder().encode(group[language]) for group in groups for language in group]
    np.testing.assert_allclose(found.points, scatter.project(np.concatenate(vectors), "pca")[0], atol=1e-6)


@pytest.mark.parametrize("first", [1, 0])
def test_tokens_are_those_of_the_pooled_layer(checkpoint: Path, first: int) -> None:
    """T5's tokenizer puts no token in front of a sentence."""
    encoder = open_encoder(checkpoint)
    vocabularies = encoder.encoder.text.vocabularies
    if not first:
        vocabularies["shared"] = dataclasses.replace(vocabularies["shared"], bos_id=None)
    sentences = [GERMAN[0], "Katze", *GERMAN[1:5]]
    labels, vectors = scatter.token_vectors(encoder.encoder, sentences, "deu")
    model, start = encoder.encoder.model, 0
    for sentence in sentences:  # each sentence by itself, without padding
        ids = encoder.encoder.tokenizers["shared"].encode([sentence])[0]
        batch = collate([np.array(ids)], encoder.encoder.text.vocabulary("source"), 64)
        with torch.inference_mode():
            expected = model.encode("source", batch)[1][0, first:-1].numpy()
        np.testing.assert_allclose(vectors[start : start + len(ids)], expected, atol=1e-5)
        pieces = [label for label in labels[start : start + len(ids)] if label != "▁"]
        assert "".join(pieces) == sentence.replace(" ", "")
        start += len(ids)
    assert start == len(vectors) == len(labels)
    assert "[unk]" in scatter.token_vectors(encoder.encoder, ["漢"], "de")[0]
    found = scatter.scatter(encoder, [{"de": GERMAN[:2], "en": ENGLISH[:2]}], "pca", tokens=True)
    assert not found.links and len(found.points) == len(found.labels) == len(found.languages)
    assert "tokens of de en by pca" in scatter.text(found)
    with pytest.raises(UserError, match="cannot encode fr"):
        scatter.scatter(encoder, [{"fr": GERMAN[:2], "en": ENGLISH[:2]}], "pca", tokens=True)


def test_what_makes_no_picture_is_one_clear_line(ngram_encoder) -> None:
    with pytest.raises(UserError, match="2 points make no picture"):
        scatter.scatter(ngram_encoder(), [{"de": GERMAN[:1], "en": ENGLISH[:1]}], "pca")
    with pytest.raises(UserError, match="all vectors are equal; take another checkpoint"):
        scatter.project(np.ones((5, 4), np.float32), "pca")
    with pytest.raises(UserError, match="precomputed vectors have no tokens"):
        scatter.scatter(ngram_encoder(), [{"de": GERMAN, "en": ENGLISH}], "pca", tokens=True)


def test_the_command_draws_and_writes(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    for language, sentences in (("de", GERMAN), ("en", ENGLISH)):
        (tmp_path / f"text.{language}").write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    output, picture = tmp_path / "out.json", tmp_path / "out.png"
    options = ["scatter", "--path", str(checkpoint), "--data", str(tmp_path / "text.{lang}"), "--sentences", "4"]
    for more, points in (([], 8), (["--tokens"], None)):
        assert main([*options, *more, "--plot", str(picture), "--json", str(output)]) == 0
        printed = capsys.readouterr()
        values = json.loads(output.read_text(encoding="utf-8"))["values"]
        assert printed.out.endswith(f"picture: {picture}\n") and printed.err == ""
        assert len(values["sentences"]) == 4
        assert len(values["points"]) == points if points else len(values["points"]) > 20
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()
    assert main(options) == 2
    assert "nothing to draw to; give --plot FILE.png" in capsys.readouterr().err
    listing = ["--list-sentences", str(tmp_path / "list")]
    assert main([*options, *listing]) == 0
    assert len((tmp_path / "list").read_text(encoding="utf-8").splitlines()) == 8
    assert main([*options, *listing, "--tokens"]) == 2
    assert "--tokens with --list-sentences" in capsys.readouterr().err
