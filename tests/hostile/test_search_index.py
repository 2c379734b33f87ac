"""The files of a search index, damaged, and forged so that their checksums are right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hostile.fuzzing import Fuzz, files_like
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from xrep.errors import UserError
from xrep.inference.search_index import SearchIndex
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import describe, digest_of

FILES = ("index.faiss", "ids.npy", "lines.txt", "offsets.npy", "vectors.npy")
QUERIES = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return SentenceEncoder.load(write_encoder(tmp_path_factory.mktemp("encoder") / "best"), device="cpu")


@pytest.fixture
def make(encoder: SentenceEncoder, tmp_path: Path) -> Callable[[str, str], Path]:
    def make(kind: str = "ivf", quantize: str = "none") -> Path:
        lines = [english for _, english in sentence_pairs(100)]
        SearchIndex.build(encoder, lines, tmp_path / "index", index=kind, quantize=quantize)
        return tmp_path / "index"

    return make


def search(path: Path) -> None:
    index = SearchIndex(path)
    for scores, rows in zip(*index.search_vectors(QUERIES, k=7), strict=True):
        for score, row in zip(scores.tolist(), rows.tolist(), strict=True):
            assert row == -1 or index.hit(row, score).text is not None


def forge(path: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> None:
    """Change the manifest, and write the right checksums into it."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {name: describe(path / name) for name in FILES if (path / name).is_file()}
    del manifest["sha256"]
    change(manifest)
    manifest["sha256"] = digest_of(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_every_damaged_file_is_named(make: Callable[..., Path], name: str) -> None:
    path = make()
    content = (path / name).read_bytes()
    half = len(content) // 2
    for damaged in (content[:-2], content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :], b""):
        (path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"(index/{name}: damaged|index: not an index \(no valid manifest)"):
            SearchIndex(path)
    (path / name).unlink()
    with pytest.raises(UserError, match=rf"(index/{name}: damaged|index: not an index \(no valid manifest)"):
        SearchIndex(path)


FORGED: dict[str, Any] = {
    "rows": [0, -1, 99, 101, 10**30, "100", None, True, 1.5],
    "size": [0, -16, 8, 17, 10**30, []],
    "cells": [0, 1, 3, -1, 10**30, {}],
    "schema": [0, 2, None, "1", []],
    "options": [{"index": "flat", "quantize": "int8"}, {"index": "tree", "quantize": "none"}, 5],
    "precision": ["float64", 3],
    "recall": [5, {"k": 1}],
    "sources": [[], {}, [{"name": 5, "language": None, "lines": 1}], None],
    "files": [{}, {"../index.faiss": {"sha256": "", "bytes": 0}}, 7],
    "fingerprint": [None, 8],
    "more": [1],
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_manifests_are_refused(make: Callable[..., Path], name: str) -> None:
    path = make()
    whole = (path / "manifest.json").read_bytes()
    for value in FORGED[name]:
        (path / "manifest.json").write_bytes(whole)
        forge(path, lambda manifest, value=value: manifest.update({name: value}))
        with pytest.raises(UserError) as caught:
            search(path)
        assert str(path) in str(caught.value) and caught.value.cure and "\n" not in str(caught.value)


def test_a_deep_manifest_is_refused(make: Callable[..., Path]) -> None:
    path = make()
    for content in ("[" * 100_000, '{"a":' * 100_000, "[1]", "5", '{"schema": 1}', "NaN"):
        (path / "manifest.json").write_text(content)
        with pytest.raises(UserError, match="not an index"):
            SearchIndex(path)


def test_forged_numbers_are_refused(make: Callable[..., Path]) -> None:
    """Rows, places and vectors that there are not; each was given its right checksum."""
    path = make("flat")
    ids, offsets, vectors = (np.load(path / f"{name}.npy") for name in ("ids", "offsets", "vectors"))
    nan, wild, far = vectors.copy(), offsets.copy(), ids.copy()
    nan[:], wild[1:], far[:, 0] = np.nan, 2**62, 9
    backward, wide = offsets[::-1].copy(), np.concatenate((vectors, vectors), axis=1)
    for name, array in (
        ("vectors", nan), ("vectors", wide), ("vectors", vectors.astype(np.float32)), ("vectors", vectors[:-1]),
        ("vectors", np.asfortranarray(vectors)), ("ids", far), ("ids", -far), ("ids", ids[:, 0]), ("ids", ids[:-1]),
        ("ids", ids.astype(np.int32)), ("offsets", wild), ("offsets", -wild), ("offsets", backward),
        ("offsets", offsets[:-1]), ("offsets", offsets.astype(float)),
    ):  # fmt: skip
        shutil.copytree(path, path.parent / "forged", dirs_exist_ok=True)
        np.save(path.parent / "forged" / f"{name}.npy", array)
        forge(path.parent / "forged")
        with pytest.raises(UserError, match="forged"):
            search(path.parent / "forged")


def test_forged_lists_name_no_rows_that_there_are_not(make: Callable[..., Path]) -> None:
    path = make("ivf")
    content = (path / "index.faiss").read_bytes()
    place = content.rindex((100 - 1).to_bytes(8, "little"))  # the number of the last row
    (path / "index.faiss").write_bytes(content[:place] + b"\xff" * 7 + b"\x7f" + content[place + 8 :])
    forge(path)
    with pytest.raises(UserError, match="the index names rows that there are not; build it again"):
        index = SearchIndex(path)
        index.search_vectors(index._files.vectors.read(slice(0, 100)), k=100)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "quantize"), [("ivf", "int8"), ("flat", "binary")])
def test_the_index_of_faiss(fuzz: Fuzz, make: Callable[..., Path], kind: str, quantize: str) -> None:
    """Whatever bytes are in it, the process lives: they are refused, or searched."""
    path = make(kind, quantize)

    def read(file: Path) -> None:
        shutil.copyfile(file, path / "index.faiss")
        forge(path)
        search(path)

    content = (path / "index.faiss").read_bytes()
    fuzz(f"{kind} {quantize} index of faiss", "index.faiss", files_like(content), read)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ids.npy", "offsets.npy", "lines.txt", "vectors.npy"])
def test_the_other_files(fuzz: Fuzz, make: Callable[..., Path], name: str) -> None:
    path = make("flat")

    def read(file: Path) -> None:
        shutil.copyfile(file, path / name)
        forge(path)
        search(path)

    fuzz(f"{name} of an index", name, files_like((path / name).read_bytes()), read)


@pytest.mark.slow
def test_manifests(fuzz: Fuzz, make: Callable[..., Path]) -> None:
    path = make("flat")

    def read(file: Path) -> None:
        shutil.copyfile(file, path / "manifest.json")
        with suppress(ValueError, TypeError, RecursionError, AttributeError, KeyError):
            forge(path)
        search(path)

    fuzz("manifest of an index", "manifest.json", files_like((path / "manifest.json").read_bytes()), read)


def test_what_is_not_the_work_of_a_build_is_not_touched(encoder: SentenceEncoder, tmp_path: Path) -> None:
    (tmp_path / "index.work").mkdir()
    (tmp_path / "index.work" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"index\.work: not the folder of an unfinished command; rename it"):
        SearchIndex.build(encoder, ["a"], tmp_path / "index")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="index: exists and is not empty"):
        SearchIndex.build(encoder, ["a"], tmp_path / "index")
    assert contents(tmp_path) == {**before, "index/notes.txt": b"mine"}
