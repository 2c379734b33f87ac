"""Files of faiss indexes: the same bytes as faiss writes, whatever was added when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest

from tests.retrieval.test_neighbours import vectors
from xrep.errors import UserError
from xrep.retrieval import faiss_files
from xrep.retrieval.faiss_files import Shape, open_index, shape_for, write_index
from xrep.retrieval.vectors import VectorFile

ROWS, SIZE = 1000, 16
KINDS = [(kind, quantize) for kind in ("flat", "ivf") for quantize in ("none", "int8", "binary")]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_files, "_BLOCK_BYTES", 4 * SIZE * 96)


def saved(path: Path, rows: int = ROWS) -> VectorFile:
    np.save(path, vectors(rows, SIZE, 3).astype(np.float16))
    return VectorFile(path)


def by_faiss(path: Path, shape: Shape) -> bytes:
    """Return the bytes that faiss writes for what it reads from a file."""
    if shape.quantize == "binary":
        return faiss.serialize_index_binary(faiss.read_index_binary(str(path))).tobytes()
    return faiss.serialize_index(faiss.read_index(str(path))).tobytes()


@pytest.mark.parametrize(("kind", "quantize"), KINDS)
def test_the_file_is_what_faiss_writes(tmp_path: Path, kind: str, quantize: str) -> None:
    file = saved(tmp_path / "v.npy")
    shape = shape_for(file, ROWS, kind, quantize)
    write_index(tmp_path / "i", shape, file)
    assert (tmp_path / "i").read_bytes() == by_faiss(tmp_path / "i", shape)
    index, x = open_index(tmp_path / "i", shape), file.read(slice(0, ROWS))
    assert index.ntotal == ROWS and shape.cells == (20 if kind == "ivf" else 0)
    reference = shape.new()
    if shape.cells:
        reference = open_index(tmp_path / "i", shape)  # the same cells, without vectors
        lists = faiss.ArrayInvertedLists(shape.cells, shape.code_bytes)
        reference.replace_invlists(lists)
        reference.ntotal = 0
    elif quantize == "int8":
        reference.train(x)
    reference.add(shape.query(x))
    for one in (index, reference):
        if shape.cells:
            one.nprobe = shape.cells
    expected, found = (one.search(shape.query(x[:50]), 5) for one in (reference, index))
    np.testing.assert_array_equal(found[0], expected[0])
    if quantize != "binary":  # of equal distances, faiss returns any
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("quantize", ["none", "int8", "binary"])
def test_rows_are_added_to_their_lists(tmp_path: Path, quantize: str) -> None:
    """The old lists with the new rows are the lists that faiss makes by adding the new rows."""
    few, all_rows = saved(tmp_path / "few.npy", 700), saved(tmp_path / "all.npy")
    np.testing.assert_array_equal(few.read(slice(0, 700)), all_rows.read(slice(0, 700)))
    old = shape_for(few, 700, "ivf", quantize)
    write_index(tmp_path / "old", old, few)
    new = replace(old, rows=ROWS)
    write_index(tmp_path / "new", new, all_rows, (tmp_path / "old", old))
    read = faiss.read_index_binary if quantize == "binary" else faiss.read_index
    index = read(str(tmp_path / "old"))
    index.add(new.query(all_rows.read(slice(700, ROWS))))
    serialize = faiss.serialize_index_binary if quantize == "binary" else faiss.serialize_index
    assert serialize(index).tobytes() == (tmp_path / "new").read_bytes() == by_faiss(tmp_path / "new", new)


def test_cells_are_chosen_anew_when_there_are_many_more_rows() -> None:
    shape = Shape(16, 1000, 20, "none")
    assert shape.suits(1000) and shape.suits(1900) and not shape.suits(3000) and not Shape(8, 9, 0, "none").suits(9)


def test_vectors_that_fill_no_bytes_cannot_be_binary(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((9, 12), dtype=np.float32))
    with pytest.raises(UserError, match="vectors of 12 numbers, .*; choose another `quantize`"):
        shape_for(VectorFile(tmp_path / "v.npy"), 9, "flat", "binary")
