import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.conftest import NgramEncoder, measured, write
from tests.support.corpus import sentence_pairs
from xrep.data.batch import collate
from xrep.errors import UserError
from xrep.evaluation import scatter
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.evaluation import Examples

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(30), strict=True))


def table(**columns: list[str]) -> Examples:
    return Examples("text", tuple(columns), tuple(columns.values()))


def points_of(encoder: object, *tables: Examples, tokens: bool = False) -> tuple[dict, list[tuple[int, int]]]:
    made = scatter.Scatter(scatter.Scatter.Config(data="-", tokens=tokens))
    made.tables = list(tables)
    return made.points(encoder)


def test_pca_is_the_singular_value_decomposition_of_what_is_centred() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 9)) * np.arange(9, 0, -1) + 50
    points, explained = scatter.project(vectors.astype(np.float32), "pca")
    centred = vectors - vectors.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points), np.abs(u[:, :2] * s[:2]), atol=1e-3)
    assert explained == pytest.approx((s[:2] ** 2).sum() / (s**2).sum(), rel=1e-5)
    np.testing.assert_allclose(points.max(axis=0), np.abs(points).max(axis=0))
    with pytest.raises(UserError, match="all vectors are equal; take another checkpoint"):
        scatter.project(np.ones((5, 4), np.float32), "pca")


@pytest.mark.slow
def test_tsne_keeps_clusters_apart() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(size=(8, 10)), rng.normal(size=(8, 10)) + 30])
    points, explained = scatter.project(vectors, "tsne", seed=1)
    assert explained is None and points.shape == (16, 2)
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag([np.inf] * 16)
    assert (distances.argmin(axis=1) // 8 == np.arange(16) // 8).all()
    np.testing.assert_array_equal(scatter.project(vectors, "tsne", seed=1)[0], points)


def test_rows_are_drawn_whole() -> None:
    texts = [table(de=GERMAN, en=ENGLISH), table(fr=ENGLISH[:10], en=GERMAN[:10])]
    tables = scatter.draw_rows(texts, 6, seed=3)
    assert scatter.draw_rows(texts, 6, seed=3) == tables != scatter.draw_rows(texts, 6, seed=4)
    for whole, drawn in zip(texts, tables, strict=True):
        assert set(zip(*drawn.columns, strict=True)) < set(zip(*whole.columns, strict=True))
        assert len(set(drawn.columns[1])) == 6
    with pytest.raises(UserError, match="`sentences` 11, but 10 of fr en with a translation; give 2 to 10"):
        scatter.draw_rows(texts, 11)


def test_links_lead_from_english_to_its_translations() -> None:
    tables = [table(de=GERMAN[:3], en=ENGLISH[:3], fr=GERMAN[3:6]), table(es=GERMAN[6:8], en=ENGLISH[6:8])]
    found, links = points_of(NgramEncoder(), *tables)
    languages = ["de"] * 3 + ["en"] * 3 + ["fr"] * 3 + ["es"] * 2 + ["en"] * 2
    assert [point["language"] for point in found["points"]] == languages
    assert [point["label"] for point in found["points"]] == ["1", "2", "3"] * 3 + ["4", "5"] * 2
    assert sorted(links) == [(3, 0), (3, 6), (4, 1), (4, 7), (5, 2), (5, 8), (11, 9), (12, 10)]
    assert found["sentences"][1] == {"de": GERMAN[1], "en": ENGLISH[1], "fr": GERMAN[4]}
    text = scatter.text(found, "sentences")
    assert text.startswith("13 sentences of de en fr es by pca; the two axes hold ")
    assert f"  5  es  {GERMAN[7]}" in text
    vectors = [NgramEncoder().encode(column) for own in tables for column in own.columns]
    points = [(point["x"], point["y"]) for point in found["points"]]
    np.testing.assert_allclose(points, scatter.project(np.concatenate(vectors), "pca")[0], atol=1e-6)


@pytest.mark.parametrize("first", [1, 0])
def test_tokens_are_those_of_the_pooled_layer(separate_encoder: Path, first: int) -> None:
    """T5's tokenizer puts no token in front of a sentence."""
    loaded = open_encoder(separate_encoder)
    encoder, vocabularies = loaded.encoder, loaded.encoder.text.vocabularies
    if not first:
        vocabularies["shared"] = dataclasses.replace(vocabularies["shared"], bos_id=None)
    sentences = [GERMAN[0], "Katze", *GERMAN[1:5]]
    labels, vectors = scatter.token_vectors(encoder, sentences, "deu")
    start = 0
    for sentence in sentences:  # each sentence by itself, without padding
        ids = encoder.tokenizers["shared"].encode([sentence])[0]
        batch = collate([np.array(ids)], encoder.text.vocabulary("source"), 64)
        with torch.inference_mode():
            expected = encoder.model.encode("source", batch)[1][0, first:-1].numpy()
        np.testing.assert_allclose(vectors[start : start + len(ids)], expected, atol=1e-5)
        pieces = [label for label in labels[start : start + len(ids)] if label not in ("▁", "[unk]")]
        assert "".join(pieces) == sentence.replace(" ", "")
        start += len(ids)
    assert start == len(vectors) == len(labels)
    assert "[unk]" in scatter.token_vectors(encoder, ["漢"], "de")[0]
    found, links = points_of(loaded, table(de=GERMAN[:2], en=ENGLISH[:2]), tokens=True)
    assert not links and len(found["points"]) > 20
    assert "tokens of de en by pca" in scatter.text(found, "tokens")


def test_an_encoder_that_does_not_fit_is_refused(separate_encoder: Path, tmp_path: Path) -> None:
    for language, lines in (("fr", GERMAN), ("en", ENGLISH)):
        write(tmp_path / f"text.{language}", lines)
    options = {"data": str(tmp_path / "text.{lang}"), "plot": "out.png", "tokens": True}
    with pytest.raises(UserError, match="cannot encode fr"):
        measured(scatter.Scatter, open_encoder(separate_encoder), **options)
    write(tmp_path / "sentences.tsv", ["fr\teins"])
    np.save(tmp_path / "vectors.npy", np.ones((1, 2), dtype=np.float32))
    with pytest.raises(UserError, match="precomputed vectors have no tokens"):
        measured(scatter.Scatter, open_encoder(tmp_path), **options)
