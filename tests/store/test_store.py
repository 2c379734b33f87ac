"""The store: arrays in files, lines of a text, and vectors in one file or in parts."""

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.store.arrays import ArrayFile
from xrep.store.texts import TEXT_FILES, Texts, write_lines
from xrep.store.vectors import Manifest, Origin, VectorPart, Vectors, normalize_rows, text_digest

LINES = ["ein Satz", "", "zwei\tWörter", "\u2028 und \x85", "x" * 1000]
ORIGIN = Origin(encoder="e", language="de", prompt=None, normalize=True, batch_tokens=64, size=3, dtype="float16")


def write_parts(folder: Path, parts: list[np.ndarray], lines: list[str]) -> Path:
    """Write vectors [n, 3] as the parts of a folder, with the checksums of their lines."""
    folder.mkdir()
    described, first = [], 0
    for number, rows in enumerate(parts):
        name = f"part-{number:05d}.npy"
        np.save(folder / name, rows.astype(np.float16))
        text = "".join(f"{line.strip()}\n" for line in lines[first : first + len(rows)])
        described.append(VectorPart(file=name, rows=len(rows), text=hashlib.sha256(text.encode()).hexdigest()))
        first += len(rows)
    Manifest(origin=ORIGIN, parts=described).write(folder)
    return folder


def copied(folder: Path, numbered: Iterable[tuple[int, str]]) -> Texts:
    folder.mkdir(exist_ok=True)
    return Texts([[folder / name for name in TEXT_FILES]], [write_lines(folder, numbered)])


def test_an_array_file_is_what_numpy_reads_and_reads_what_numpy_writes(tmp_path: Path) -> None:
    written = ArrayFile.create(tmp_path / "a.npy", np.float32, (2,))
    for rows in np.split(np.arange(20, dtype=np.float32).reshape(10, 2), [3, 3, 8]):
        written.append(rows)
    written.close()
    expected = np.load(tmp_path / "a.npy")
    assert expected.tolist() == np.arange(20).reshape(10, 2).tolist() and expected.dtype == np.float32
    read = ArrayFile.open(tmp_path / "a.npy", "numbers", "")
    assert (read.read(slice(2, 99)) == expected[2:]).all()
    assert [start for start, _ in read.blocks(24)] == [0, 3, 6, 9]
    order = np.array([9, 3, 4, 5, 3, 0])
    assert (read.read(order) == expected[order]).all()
    assert read.read(order[:0]).shape == (0, 2)


def test_a_line_end_inside_a_line_shifts_no_other(tmp_path: Path) -> None:
    given = ["eins\rzwei\r\ndrei", "vier", "\n"]
    lines = copied(tmp_path, enumerate((line.strip() for line in given), 1))
    assert lines.read(0, 3) == lines.take([0, 1, 2]) == ["eins zwei  drei", "vier", ""]
    assert sha256_of(tmp_path / TEXT_FILES[0]) == text_digest(given)
    lines = copied(tmp_path, [])
    assert len(lines) == 0 and lines.read(0, 0) == []


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 12), max_size=3),
    rows=st.lists(st.integers(0, 11), max_size=9),
    start=st.integers(0, 12),
)
def test_parts_read_as_one_file(tmp_path_factory, cuts, rows, start):
    folder = tmp_path_factory.mktemp("parts")
    vectors = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float16)
    np.save(folder / "one.npy", vectors)
    parts = Vectors(write_parts(folder / "many", np.split(vectors, sorted(cuts)), [""] * 12))
    one = Vectors(folder / "one.npy")
    for some in (slice(start, None), slice(0, start), np.array(rows, np.int64)):
        assert parts.stored(some).tolist() == one.stored(some).tolist() == vectors[some].tolist()
        assert (parts.read(some) == normalize_rows(vectors[some].astype(np.float32))).all()
    assert [len(each) for each in (parts, one)] == [12, 12] and parts.dtype == one.dtype == np.float16


def test_parts_belong_to_their_lines(tmp_path: Path) -> None:
    vectors = Vectors(write_parts(tmp_path / "vectors", [np.ones((2, 3)), np.ones((3, 3))], LINES))
    stripped = [line.strip() for line in LINES]
    other = [*stripped[:3], "anders", stripped[4]]
    for number, (start, stop) in enumerate([(0, 2), (2, 5)]):
        vectors.check_text(number, text_digest(stripped[start:stop]), "de.txt")
    vectors.check_text(0, text_digest(other[:2]), "de.txt")
    with pytest.raises(UserError, match=r"de.txt:3: .*part-00001.npy has the vectors of other lines than these 3"):
        vectors.check_text(1, text_digest(other[2:]), "de.txt")
    vectors.check_count(5, "de.txt")
    for lines, place in ((6, 6), (4, 5)):
        with pytest.raises(UserError, match=rf"de.txt:{place}: {lines} lines, but .*vectors has 5 vectors; row i must"):
            vectors.check_count(lines, "de.txt")


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 5), max_size=3), start=st.integers(0, 5), rows=st.lists(st.integers(0, 4)))
def test_texts_read_as_one(tmp_path_factory, cuts, start, rows):
    folder, edges = tmp_path_factory.mktemp("texts"), [0, *sorted(cuts), 5]
    for number, (first, last) in enumerate(pairwise(edges)):
        copied(folder / f"{number}", enumerate(LINES[first:last], 7))
    files = [[folder / f"{number}" / name for name in TEXT_FILES] for number in range(len(edges) - 1)]
    several = Texts(files, np.diff(edges).tolist())
    assert len(several) == 5 and several.starts == edges
    for some in ((0, start), (start, 5)) if 0 < start < 5 else ((0, 5),):
        assert several.read(*some) == LINES[slice(*some)]
    assert several.take(np.array(rows, np.int64)) == [LINES[row] for row in rows]
    for row in rows:
        text, number = several.place(row)
        assert LINES[edges[text] + number - 7] == LINES[row] and edges[text] <= row < edges[text + 1]


def test_what_holds_no_vectors_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", np.ones((2, 3), int))
    np.save(tmp_path / "columns.npy", np.ones((3, 4)).T)
    folder = write_parts(tmp_path / "parts", [np.ones((2, 3)), np.ones((2, 3))], [""] * 4)
    (folder / "part-00001.npy").write_bytes(b"x")
    for name in ("unfinished", "later"):
        write_parts(tmp_path / name, [np.ones((2, 3))], [""] * 2)
    (tmp_path / "unfinished" / "manifest.json").unlink()
    later = tmp_path / "later" / "manifest.json"
    later.write_text(later.read_text().replace('"schema": 1', '"schema": 9'))
    for name, problem in {
        "whole.npy": "not an array .N, D. of floats",
        "columns.npy": "do not lie one after the other",
        "missing.npy": "no such file",
        "parts": "part-00001.npy: not a file of vectors",
        "unfinished": "unfinished: no vectors: it has no manifest.json; give a .npy file of floats",
        "later": r"later/manifest.json: not the manifest of vectors, or of another version",
    }.items():
        with pytest.raises(UserError, match=problem):
            Vectors(tmp_path / name).stored(slice(None))


def test_a_vector_that_is_not_finite_or_zero_is_named_by_its_part_and_row(tmp_path: Path) -> None:
    rows, empty = np.ones((2, 3)), np.array([False, False, True, False])
    vectors = Vectors(write_parts(tmp_path / "parts", [rows, np.array([[0, 0, 0], [1, np.inf, 1]])], [""] * 4))
    stored = vectors.stored(slice(0, 4))
    vectors.check_rows(stored[:3], 0, empty[:3])
    for some, may_be_zero, problem in ((4, empty, "2: .* is not finite"), (3, ~empty[:3], "1: .* is zero")):
        with pytest.raises(UserError, match=f"part-00001.npy:{problem}"):
            vectors.check_rows(stored[:some], 0, may_be_zero)


def test_rows_of_extreme_numbers_are_normalised() -> None:
    rows = np.array([[3e-30, 4e-30], [3e30, 4e30], [0, 0], [3, 4]], np.float32)
    expected = [[0.6, 0.8], [0.6, 0.8], [0, 0], [0.6, 0.8]]
    assert np.allclose(normalize_rows(rows), expected)
