"""``SearchIndex``: what it finds, what it keeps on disk, adding, and interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from xrep import SearchIndex
from xrep.errors import UserError
from xrep.inference import encoding, index_files
from xrep.inference.sentence_encoder import SentenceEncoder

RMTREE = shutil.rmtree
SENTENCES = [english for _, english in sentence_pairs(600)]
QUERIES = [english for _, english in sentence_pairs(650)[600:]]


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "int8", "binary"])
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_the_nearest_sentences_are_found(encoder: SentenceEncoder, tmp_path: Path, kind: str, quantize: str) -> None:
    """All cells are searched. The scores are exact, whatever the codes are; binary codes of 16 bits miss some."""
    index = SearchIndex.build(encoder, SENTENCES, tmp_path / "index", index=kind, quantize=quantize)
    found, exact = index.search(QUERIES, k=5, probes=1000), encoder.encode(QUERIES) @ encoder.encode(SENTENCES).T
    for row, hits in enumerate(found):
        scores = [hit.score for hit in hits]
        np.testing.assert_allclose(scores, [exact[row, hit.row] for hit in hits], atol=2e-3)
        assert scores == sorted(scores, reverse=True) and len(hits) == 5
        assert all((hit.text, hit.line, hit.file) == (SENTENCES[hit.row], hit.row + 1, None) for hit in hits)
    best = [hits[0].score for hits in found]
    assert np.mean(np.array(best) > exact.max(axis=1) - 2e-3) >= (0.6 if quantize == "binary" else 1)
    recall = index.manifest.recall
    assert (recall is None) == (kind == "flat" and quantize == "none")
    if recall is not None:
        assert recall.queries == 100 and recall.k == 10 and recall.not_rescored <= recall.recall + 0.01
        assert recall.recall >= (0.6 if quantize == "binary" else 0.9)
    if kind == "flat":  # a number has 32 bits, 8 bits, or one
        least = 16 * len(SENTENCES) * {"none": 32, "int8": 8, "binary": 1}[quantize] // 8
        assert least < index.manifest.files["index.faiss"].bytes < least + 300


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "quantize"), [("flat", "none"), ("ivf", "int8"), ("flat", "binary")])
def test_the_files_can_be_read_without_xrep(encoder: SentenceEncoder, tmp_path: Path, kind: str, quantize: str) -> None:
    """Only faiss, json and numpy read the files."""
    files = {"a.txt": ["", "", *SENTENCES[:400]], "b.txt": [text for line in SENTENCES[400:] for text in (line, "")]}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    index = SearchIndex.build(encoder, tmp_path / "a.txt", tmp_path / "index", index=kind, quantize=quantize, lang="en")
    index.add(tmp_path / "b.txt")
    manifest, x = json.loads((index.path / "manifest.json").read_text()), encoder.encode(QUERIES)
    binary = manifest["options"]["quantize"] == "binary"
    stored = (faiss.read_index_binary if binary else faiss.read_index)(str(index.path / "index.faiss"))
    if manifest["cells"]:
        stored.nprobe = manifest["cells"]
    rows = stored.search(np.packbits(x > 0, axis=1) if binary else x, 3)[1]
    ids, texts = np.load(index.path / "ids.npy"), (index.path / "lines.txt").read_text().split("\n")
    assert np.load(index.path / "vectors.npy").shape == (600, 16)
    places = [
        [(Path(manifest["sources"][file]["name"]).name, line) for file, line in ids[some].tolist()] for some in rows
    ]
    for row, some in enumerate(places):
        assert [files[name][line - 1] for name, line in some] == [texts[one] for one in rows[row]]
    if quantize == "none":
        hits = index.search(QUERIES, k=3)
        assert [[(Path(hit.file).name, hit.line) for hit in some] for some in hits] == places


@pytest.mark.slow
def test_what_is_added_is_found_beside_the_rest(encoder, tmp_path, monkeypatch):
    whole = SearchIndex.build(encoder, SENTENCES, tmp_path / "whole", index="ivf")
    monkeypatch.setattr(index_files, "FLAT_ROWS", 500)
    parts = SearchIndex.build(encoder, SENTENCES[:500], tmp_path / "parts")
    assert parts.manifest.cells == 0
    parts.add(SENTENCES[500:520])  # an index that grows gets inverted files
    assert parts.manifest.cells == 10 and isinstance(parts._files.index, faiss.IndexIVF)
    parts.add(SENTENCES[520:], lang="en")
    assert len(parts) == 600 and parts.manifest.cells == 10  # the cells stay
    assert [source.lines for source in parts.manifest.sources] == [500, 20, 80]
    for index in (parts, SearchIndex(tmp_path / "parts", encoder)):
        expected, found = (each.search(QUERIES, k=5, probes=1000) for each in (whole, index))
        assert [[hit.text for hit in hits] for hits in found] == [[hit.text for hit in hits] for hits in expected]
    parts.add([f"{line} {word}" for line in SENTENCES for word in "now soon here there never always".split()])
    assert parts.manifest.cells == 87  # for four times as many rows they are chosen anew
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".work")] == []


def test_odd_sentences(encoder: SentenceEncoder, tmp_path: Path) -> None:
    lines = ["", "a\tred\nhouse", "  ", "\ud800 x", "ein Haus"]
    index = SearchIndex.build(encoder, lines, tmp_path / "index")
    assert [(hit.line, hit.text) for hit in index.search("a red house", k=9)][0] == (2, "a red house")
    assert {hit.line for hit in index.search("x", k=9)} == {2, 4, 5}
    assert index.search(["", "x"], k=1)[0] == [] and index.search([]) == []
    scores, rows = index.search_vectors(encoder.encode(["ein Haus"]), k=100)
    assert scores.shape == rows.shape == (1, 3) and rows[0, 0] == 2
    one = SearchIndex.build(encoder, ["ein Haus"], tmp_path / "one", index="ivf", quantize="int8")
    assert one.manifest.recall is None and one.search("Haus")[0].text == "ein Haus"


def test_the_encoder_of_an_index(shared_encoder: Path, encoder: SentenceEncoder, tmp_path: Path) -> None:
    """It is loaded from where it was, also if both were moved together, and another one is refused."""
    place = tmp_path / "old"
    other = write_encoder(place / "run" / "best", seed=3)
    SearchIndex.build(other, SENTENCES[:5], place / "index", device="cpu")
    place.rename(tmp_path / "new")
    index = SearchIndex(tmp_path / "new" / "index", device="cpu")
    assert index.manifest.encoder == "../run/best" and index.search(SENTENCES[3], k=1)[0].row == 3
    message = "index: its vectors were made by another encoder; give `path`, or build the index again"
    with pytest.raises(UserError, match=message):
        SearchIndex(tmp_path / "new" / "index", encoder)
    with pytest.raises(UserError, match=message):
        SearchIndex(tmp_path / "new" / "index", shared_encoder, device="cpu").search("x")
    unnamed = SearchIndex.build(
        SentenceEncoder(encoder.model, encoder.tokenizers, encoder.text), SENTENCES[:5], tmp_path / "unnamed"
    )
    assert unnamed.search("x", k=1)
    with pytest.raises(UserError, match="does not say where its encoder is; give `path`"):
        SearchIndex(tmp_path / "unnamed").search("x")
    with pytest.raises(ValueError, match=r"queries must be \[Q, 16\], not \[1, 3\]"):
        unnamed.search_vectors(np.ones((1, 3)))


@pytest.mark.slow
def test_an_interrupted_build_goes_on(encoder, tmp_path, monkeypatch):
    """It stops at each of its steps; what was encoded is not encoded again, and the bytes are the same."""
    monkeypatch.setattr(encoding, "CHUNK_LINES", 50)
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in SENTENCES[:200]))

    def build(name: str) -> SearchIndex:
        return SearchIndex.build(encoder, tmp_path / "a.txt", tmp_path / name, index="ivf")

    def add(name: str) -> None:
        SearchIndex(tmp_path / name, encoder).add(tmp_path / "a.txt", lang="de")

    build("whole")
    first = contents(tmp_path / "whole")
    add("whole")
    second = contents(tmp_path / "whole")
    assert first.keys() == second.keys() == {
        "manifest.json", "index.faiss", "ids.npy", "lines.txt", "offsets.npy", "vectors.npy"
    }  # fmt: skip
    steps = ["write_npy", "write_index", "recall_of", "describe", "write_json", "flush_to_disk"]
    for run, before, after in ((build, None, first), (add, first, second)):
        for step in [*steps, "check_new_directory" if run is build else "exchange", "shutil.rmtree"]:
            with monkeypatch.context() as patch:
                patch.setattr(f"xrep.inference.index_files.{step}", stop)
                if step == "shutil.rmtree":
                    patch.setattr("xrep.inference.index_files.shutil.rmtree", stop_at_work)
                with pytest.raises(KeyboardInterrupt):
                    run("index")
            left = contents(tmp_path / "index") if (tmp_path / "index").exists() else None
            assert left == (after if step == "shutil.rmtree" else before), step
        with monkeypatch.context() as patch:
            patch.setattr(SentenceEncoder, "encode", stop)  # everything is encoded already
            run("index")
        assert contents(tmp_path / "index") == after and not (tmp_path / "index.work").exists()


def stop(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def stop_at_work(path: Path, **options: object) -> None:
    if path.name.endswith(".work"):
        raise KeyboardInterrupt
    RMTREE(path, **options)
