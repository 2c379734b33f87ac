"""``SearchIndex``: what it finds, what it keeps on disk, adding, and interruption."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from xrep import SearchIndex
from xrep.errors import UserError
from xrep.inference import index_files, search_index
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.retrieval import ivf

SENTENCES = [english for _, english in sentence_pairs(600)]
QUERIES = [english for _, english in sentence_pairs(650)[600:]]


def part_of(index: SearchIndex) -> Path:
    """Return the folder of the first part."""
    return index.path / index.manifest["parts"][0]["folder"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "IVF20,SQ8", "IVF20,PQ8x4", "SQ8", "HNSW16"])
def test_the_nearest_sentences_are_found(encoder: SentenceEncoder, tmp_path: Path, kind: str) -> None:
    """All lists are searched. The scores are those of the vectors, whatever faiss keeps of them."""
    index = SearchIndex.build(encoder, SENTENCES[:500], tmp_path / "index", index=kind)
    index.add(SENTENCES[500:])
    found, exact = index.search(QUERIES, k=5, probes=1000), encoder.encode(QUERIES) @ encoder.encode(SENTENCES).T
    for row, hits in enumerate(found):
        scores = [hit.score for hit in hits]
        np.testing.assert_allclose(scores, [exact[row, hit.row] for hit in hits], atol=2e-3)
        assert scores == sorted(scores, reverse=True) and len(hits) == 5
        assert all((hit.text, hit.file) == (SENTENCES[hit.row], None) for hit in hits)
        assert all(hit.line == hit.row + 1 - 500 * (hit.row >= 500) for hit in hits)
    best = [hits[0].score for hits in found]
    assert np.mean(np.array(best) > exact.max(axis=1) - 2e-3) == 1
    assert [part["index"] for part in index.manifest["parts"]] == [kind, "flat"]


@pytest.mark.slow
def test_the_recall_is_that_of_a_plain_product(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(search_index, "PROBES", 2)
    index = SearchIndex.build(encoder, SENTENCES[:500], tmp_path / "index", index="IVF60,SQ8")
    index.add(SENTENCES[500:])
    x, recall = encoder.encode(SENTENCES), index.check(k=7, queries=600)
    cosines = x @ x.T
    np.fill_diagonal(cosines, -2)
    found = [[hit.row for hit in hits] for hits in index.search(x, 8, probes=2)]
    nearest = np.argsort(-cosines, axis=1)[:, :7]
    shares = [len({*some} & {*each} - {row}) / 7 for row, (some, each) in enumerate(zip(nearest, found, strict=True))]
    assert 0.5 < recall < 0.95
    assert recall == pytest.approx(np.mean(shares), abs=0.005)  # 16-bit vectors exchange near ties


@pytest.mark.slow
def test_the_files_can_be_read_without_xrep(encoder, tmp_path, monkeypatch):
    """Only faiss, json and numpy read the files. Of many vectors there are several files of faiss."""
    monkeypatch.setattr(index_files, "_INDEX_BYTES", 4 * 16 * 250)
    monkeypatch.setattr(ivf, "_BLOCK", 96)
    lines = ["", "", *[text for line in SENTENCES for text in (line, "")]]
    write_lines(tmp_path / "a.txt", lines)
    index = SearchIndex.build(encoder, tmp_path / "a.txt", tmp_path / "index", index="IVF20,SQfp16", lang="en")
    manifest, part = json.loads((index.path / "manifest.json").read_text()), part_of(index)
    assert [each["folder"] for each in manifest["parts"]] == [part.name]
    vectors, numbers = np.load(part / "vectors.npy"), np.load(part / "numbers.npy")
    texts = (part / "lines.txt").read_text().splitlines()
    assert vectors.shape == (600, 16) and texts == SENTENCES and [lines[one - 1] for one in numbers] == texts
    x, scores = encoder.encode(QUERIES), []
    for number, first in enumerate((0, 250, 500)):
        stored: Any = faiss.read_index(str(part / f"{number:05d}.faiss"))
        stored.nprobe = 20
        assert stored.ntotal == min(250, 600 - first)
        scores.append(np.full((len(x), 600), -2.0))
        for row, (similarity, found) in enumerate(zip(*stored.search(x, 250), strict=True)):
            scores[-1][row, found[found >= 0] + first] = similarity[found >= 0]
    nearest = np.argsort(-np.max(scores, axis=0), axis=1, kind="stable")[:, :3]
    hits = index.search(QUERIES, k=3, probes=20)
    assert np.mean([[hit.row for hit in some] for some in hits] == nearest) > 0.97  # fp16 exchanges near ties


@pytest.mark.slow
def test_what_is_added_is_found_beside_the_rest(encoder, tmp_path, monkeypatch):
    whole = SearchIndex.build(encoder, SENTENCES, tmp_path / "whole", index="IVF20,SQ8")
    monkeypatch.setattr(index_files, "FLAT_ROWS", 500)
    parts = SearchIndex.build(encoder, SENTENCES[:500], tmp_path / "parts", lang="en")
    before = contents(parts.path)
    parts.add(SENTENCES[500:520])
    reader = SearchIndex(tmp_path / "parts", encoder)
    parts.add(SENTENCES[520:], lang="de")
    assert len(reader) == 520 and reader.search(SENTENCES[510], k=1)[0].row == 510  # it sees what it has opened
    assert [part["lines"] for part in parts.manifest["parts"]] == [500, 20, 80]
    assert [part["language"] for part in parts.manifest["parts"]] == ["en", "en", "de"]
    after = contents(parts.path)
    assert {name for name in before if before[name] != after[name]} == {"manifest.json"}
    for index in (parts, SearchIndex(tmp_path / "parts", encoder)):
        expected, found = (each.search(QUERIES, k=5, probes=1000) for each in (whole, index))
        assert [[(hit.text, hit.score) for hit in hits] for hits in found] == [
            [(hit.text, hit.score) for hit in hits] for hits in expected
        ]
    parts.add([f"{line} {word}" for line in SENTENCES for word in "now soon here there never always".split()])
    assert [part["index"] for part in parts.manifest["parts"]] == [*["flat"] * 3, "IVF240,SQ8"] and len(parts) == 4200
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".job")] == []


def test_it_harms_nothing(encoder: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes and files of others stay, also in a part that was left unfinished."""
    path = tmp_path / "index"
    path.mkdir(0o700)
    SearchIndex.build(encoder, SENTENCES[:5], path)
    (path / "manifest.json").chmod(0o640)
    (path / "notes.txt").write_text("mine")
    left = [path / f"part-{number:016x}" for number in range(3)]
    for name in (left[0] / "lines.txt", left[0] / "notes.txt", left[1] / "vectors.npy"):
        name.parent.mkdir(exist_ok=True)
        name.write_text("left")
    left[2].write_text("mine")
    SearchIndex(path, encoder).add(SENTENCES[5:7])
    assert path.stat().st_mode & 0o777 == 0o700 and (path / "manifest.json").stat().st_mode & 0o777 == 0o640
    assert (path / "notes.txt").read_text() == "mine" and os.listdir(left[0]) == ["notes.txt"]
    assert not left[1].exists() and left[2].read_text() == "mine"
    monkeypatch.chdir(tmp_path)
    for output in (".", "..", "/"):
        with pytest.raises(UserError, match="exists and is not empty"):
            SearchIndex.build(encoder, SENTENCES, output)
    with pytest.raises(UserError, match="index: exists and is not empty"):
        SearchIndex.build(encoder, SENTENCES[:5], path)  # to which others were added
    with pytest.raises(UserError, match="inside .*/index; choose another place"):
        SearchIndex.build(path, SENTENCES, path / "more")


def test_the_same_sentences_are_there_once(encoder: SentenceEncoder, tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = SearchIndex.build(encoder, SENTENCES[:9], path, lang="en")
    before = contents(path)
    index.add(iter([f"  {line}" for line in SENTENCES[:9]]), batch_tokens=64)
    assert len(SearchIndex.build(encoder, [*SENTENCES[:9], ""], path, lang="en")) == 9
    with pytest.raises(UserError, match="index: exists and is not empty"):
        SearchIndex.build(encoder, ["", *SENTENCES[:9]], path, lang="en")  # the same sentences at other lines
    assert contents(path) == before
    index.add(SENTENCES[:9], lang="de")
    for number in range(9, 12):
        index.add(SENTENCES[number : number + 1])
    opened = len(os.listdir("/proc/self/fd"))
    again = SearchIndex(path, encoder)  # which opens no file of its parts: there may be more than a process may open
    assert len(again) == 21 and len(os.listdir("/proc/self/fd")) <= opened
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_damage_is_found(encoder: SentenceEncoder, tmp_path: Path) -> None:
    path = tmp_path / "index"
    SearchIndex.build(encoder, SENTENCES[:9], path)
    text = part_of(SearchIndex(path)) / "lines.txt"
    content = text.read_bytes()
    text.write_bytes(content.replace(b"e", b"a", 1))
    with pytest.raises(UserError, match="lines.txt: damaged: the file is not as it was written; remove the index and"):
        SearchIndex(path).check()  # opening compares sizes only
    text.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"lines.txt: damaged"):
        SearchIndex(path)
    manifest = json.loads((path / "manifest.json").read_text())
    for other in (manifest | {"schema": 1}, {"schema": 3, "parts": manifest["parts"]}, []):
        (path / "manifest.json").write_text(json.dumps(other))
        with pytest.raises(
            UserError, match="index: not an index .no valid manifest.json of schema 3.; name a directory"
        ):
            SearchIndex(path)


def test_odd_sentences(encoder: SentenceEncoder, tmp_path: Path) -> None:
    lines = ["", "a\tred\nhouse", "  ", "\ud800 x", "ein Haus"]
    index = SearchIndex.build(encoder, lines, tmp_path / "index")
    assert [(hit.line, hit.text) for hit in index.search("a red house", k=9)][0] == (2, "a red house")
    assert {hit.line for hit in index.search("x", k=9)} == {2, 4, 5}
    assert index.search(["", "x"], k=1)[0] == [] and index.search([]) == []
    (hits,) = index.search(encoder.encode(["ein Haus"]), k=100)
    assert [hit.text for hit in hits][0] == "ein Haus" and len(hits) == 3
    one = SearchIndex.build(encoder, ["ein Haus"], tmp_path / "one")
    assert one.check() == 1 and one.search("Haus")[0].text == "ein Haus"


def test_the_encoder_of_an_index(shared_encoder: Path, encoder: SentenceEncoder, tmp_path: Path) -> None:
    """It is loaded from where it was, also if both were moved together or the index alone, and another one is
    refused."""
    place = tmp_path / "old"
    other = write_encoder(place / "run" / "best", seed=3)
    SearchIndex.build(other, SENTENCES[:5], place / "index", device="cpu")
    shutil.copytree(place / "index", tmp_path / "copy" / "deep" / "index")
    (tmp_path / "copy" / "run" / "best").mkdir(parents=True)  # no encoder, beside the index
    shutil.copytree(place / "index", tmp_path / "copy" / "index")
    for copy in ("index", "deep/index"):
        assert SearchIndex(tmp_path / "copy" / copy, device="cpu").search(SENTENCES[3], k=1)[0].row == 3
    place.rename(tmp_path / "new")
    index = SearchIndex(tmp_path / "new" / "index", device="cpu")
    assert index.manifest["beside"] == "../run/best" and index.search(SENTENCES[3], k=1)[0].row == 3
    with pytest.raises(UserError, match="its encoder is not where it was .*old/run/best.; give its directory as `path"):
        SearchIndex(tmp_path / "copy" / "deep" / "index", device="cpu").search("x")
    message = "index: its vectors were made by another encoder; give `path`, or build the index again"
    with pytest.raises(UserError, match=message):
        SearchIndex(tmp_path / "new" / "index", encoder)
    with pytest.raises(UserError, match=message):
        SearchIndex(tmp_path / "new" / "index", shared_encoder, device="cpu").search("x")
    unnamed = SearchIndex.build(
        SentenceEncoder(encoder.model, encoder.tokenizers, encoder.text), SENTENCES[:5], tmp_path / "unnamed"
    )
    assert unnamed.search("x", k=1)
    with pytest.raises(UserError, match="is not where it was .it had no path.; give its directory as `path`"):
        SearchIndex(tmp_path / "unnamed").search("x")
    with pytest.raises(ValueError, match=r"queries must be \[Q, 16\], not \[1, 3\]"):
        unnamed.search(np.ones((1, 3)))


class Steps:
    """Counts the steps of this process that change files, and ends it before one of them and before all later ones."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.left, self._end = sys.maxsize, end
        sys.addaudithook(self._count)

    def _count(self, event: str, given: tuple[Any, ...]) -> None:
        opened = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR)
        if opened or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"):
            self.left -= 1
            if self.left < 0:
                self._end()


class Killed(BaseException):
    pass


def stop() -> None:
    raise Killed


@pytest.mark.slow
def test_a_stopped_command_goes_on(encoder: SentenceEncoder, tmp_path: Path) -> None:
    """It stops before each step that changes a file; a reader finds the old or the new index, and the bytes are the
    same at last."""
    write_lines(tmp_path / "a.txt", SENTENCES[:50])
    path, job, steps, number = tmp_path / "index", tmp_path / "index.job", Steps(stop), 0

    def build(name: str) -> None:
        SearchIndex.build(encoder, tmp_path / "a.txt", tmp_path / name, index="IVF2,SQ8")

    def add(name: str) -> None:
        SearchIndex(tmp_path / name, encoder).add(tmp_path / "a.txt", lang="de")

    build("built")
    shutil.copytree(tmp_path / "built", tmp_path / "added")
    add("added")
    for run, end in ((build, contents(tmp_path / "built")), (add, contents(tmp_path / "added"))):
        for number in range(1000):
            if run is add:
                shutil.copytree(tmp_path / "built", path)
            steps.left = number
            try:
                run("index")
                break
            except Killed:
                pass
            finally:
                steps.left = sys.maxsize
            assert not (path / "manifest.json").exists() or len(SearchIndex(path)) in (50, 100)
            run("index")
            assert contents(path) == end and not job.exists(), number
            shutil.rmtree(path)
        assert number > 20 and contents(path) == end
        run("index")  # all of which is done
        assert contents(path) == end and not job.exists()
        shutil.rmtree(path)
