"""Readers of vectors, and of what an interrupted run has left, given files that are damaged on purpose."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.hostile.fuzzing import Fuzz, files_like
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.inference import encoding, mining
from xrep.inference.encoding import encode_file
from xrep.inference.mining import MiningOptions, Text, mine
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.retrieval.search import load_neighbours
from xrep.retrieval.vectors import VectorFile


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_header(header: str, version: int = 1) -> bytes:
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode("latin1") + bytes(256)


def header(shape: str, descr: str = "'<f4'", order: str = "False") -> bytes:
    return with_header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': ({shape}), }}\n")


X = np.random.default_rng(0).standard_normal((6, 4))
VECTORS = [saved(X.astype(np.float32)), saved(X.astype(">f8")), saved(np.asfortranarray(X.astype(np.float16)))]
SHAPES = ["-1, 4", "4, -4", f"{2**62}, 4", f"{2**63}, 4", f"{2**33}, {2**31}", "0, 4", "4, 0", "4, 4, 4", "64,", "",
          "4, 1e3", "None, 4", f"{10**400}, 3", "1000, 1000"]  # fmt: skip
TYPES = ["'|O'", "'<i4'", "'<c8'", "'<U4'", "'<M8[ns]'", "[('a', '<f4')]", "('<f4', (2,))", "('<f4',)", "[]", "5",
         "'<f3'", "'f4,,'", "[('a', [('b', 'O')])]", "('<f4', (10**9, 10**9))", "'\\ud800'", "[" * 3000]  # fmt: skip
HEADERS = ["(" * 1000, "{" * 1000, "[" * 50_000, "-" * 50_000 + "1", "'''", "\\", "{'a':", "\x00", "(", "{1: 2}"]
NO_VECTORS = [
    *(header(shape) for shape in SHAPES),
    *(header("4, 4", kind) for kind in TYPES),
    *(with_header(text, version) for text in HEADERS for version in (1, 2, 3)),
    *(VECTORS[0][:size] for size in (0, 6, 8, 60, 150, len(VECTORS[0]) - 1)),
    b"\x93NUMPY\x02\x00\xff\xff\xff\xff", b"PK\x03\x04", b"\x80\x04.",
]  # fmt: skip


def read_vectors(path: Path) -> None:
    file = VectorFile(path)
    for _ in file.survey():
        pass
    assert np.isfinite(file.read(slice(0, len(file)))).all()


@pytest.mark.parametrize("content", NO_VECTORS, ids=range(len(NO_VECTORS)))
def test_what_is_no_file_of_vectors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.npy: not (a file of vectors, or a truncated one|an array \[N, D\])"):
        VectorFile(tmp_path / "x.npy")


@pytest.mark.slow
def test_vectors(fuzz: Fuzz) -> None:
    fuzz("vectors", "x.npy", files_like(*VECTORS, header("4, 4"), header("4, 4", "'|O'")), read_vectors)


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-44])
def test_vectors_whose_squares_float32_cannot_hold_have_directions(tmp_path: Path, scale: float) -> None:
    signs = np.sign(X).astype(np.float32)
    np.save(tmp_path / "x.npy", signs * np.float32(scale))
    np.testing.assert_allclose(VectorFile(tmp_path / "x.npy").read(slice(0, 6)), signs / 2, atol=1e-6)


def test_a_journal(fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged journal is refused or makes the run begin anew; it never makes another file than an undisturbed run."""
    monkeypatch.setattr(encoding, "CHUNK_LINES", 2)
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "best"), device="cpu")
    vectors = np.arange(6 * 16, dtype=np.float32).reshape(6, 16)
    monkeypatch.setattr(encoder, "encode", lambda lines, *_, **__: np.stack([vectors[int(line)] for line in lines]))
    fingerprint = encoder.fingerprint()
    monkeypatch.setattr(encoder, "fingerprint", lambda: fingerprint)
    (tmp_path / "lines.txt").write_text("".join(f"{row}\n" for row in range(6)))
    (tmp_path / "bad.txt").write_bytes(b"0\n1\n2\n3\n\xff\n")
    with pytest.raises(UserError, match="invalid UTF-8"):
        encode_file(encoder, tmp_path / "bad.txt", tmp_path / "v.npy", show_progress=False)
    partial, journal = ((tmp_path / f"v.npy.partial{ending}").read_bytes() for ending in ("", ".json"))
    assert json.loads(journal)["lines"] == 4

    def resume(path: Path) -> None:
        (tmp_path / "v.npy.partial").write_bytes(partial)
        (tmp_path / "v.npy.partial.json").write_bytes(path.read_bytes())
        encode_file(encoder, tmp_path / "lines.txt", tmp_path / "v.npy", show_progress=False)
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)

    fuzz("journal of an encoding", "journal", files_like(journal), resume)


def searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the state and the facts of a search that was stopped before it wrote its pairs."""
    for name in "xy":
        np.save(folder / f"{name}.npy", np.random.default_rng(ord(name)).standard_normal((6, 4)).astype(np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(mining, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_mining(folder)
    return {name: (folder / "m.tsv.work" / name).read_bytes() for name in ("neighbours.npz", "facts.json")}


def run_mining(folder: Path) -> None:
    sides = [Text(name=name, vectors=folder / file) for name, file in (("source", "x.npy"), ("target", "y.npy"))]
    mine(*sides, folder / "m.tsv", MiningOptions(neighbours=2))


@pytest.mark.parametrize("damaged", ["neighbours.npz", "facts.json"])
def test_the_state_of_a_search(fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str) -> None:
    left = searched(tmp_path, monkeypatch)

    def resume(path: Path) -> None:
        (tmp_path / "m.tsv.work").mkdir(exist_ok=True)
        for name, content in {**left, damaged: path.read_bytes()}.items():
            (tmp_path / "m.tsv.work" / name).write_bytes(content)
        run_mining(tmp_path)

    fuzz(f"{damaged} of a search", "state", files_like(left[damaged]), resume)


@pytest.mark.slow
def test_neighbours(fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = searched(tmp_path, monkeypatch)["neighbours.npz"]

    def read(path: Path) -> None:
        nearest, _ = load_neighbours(path, 6, 6, 2)
        assert nearest.xy.max() < 6 and nearest.yx.max() < 6

    fuzz("neighbours", "neighbours.npz", files_like(state), read)
