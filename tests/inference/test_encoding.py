"""Encoding of the lines of a file into the rows of a .npy file, also after interruptions."""

from __future__ import annotations

import errno
import fcntl
import gzip
import itertools
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from xrep.errors import UserError
from xrep.inference import encoding
from xrep.inference.encoding import Encoded, encode_file
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.lines import Lines
from xrep.store.vectors import Vectors

Encode, Stop = Callable[..., Encoded], Callable[[], Path]
LINES = [german for german, _ in sentence_pairs(23)]
LINES += ["", "Haus", "ein rotes Haus " * 100, "  ", "日本語 \N{GRINNING FACE}"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_LINES", 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "lines.txt", LINES)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def encode(encoder: SentenceEncoder, source: Path) -> Encode:
    def run(output: Path, encoder: SentenceEncoder = encoder, path: str = str(source), **options: Any) -> Encoded:
        return encode_file(encoder, path, output, show_progress=False, **options)

    return run


@pytest.fixture
def interrupted(encode: Encode, source: Path, tmp_path: Path) -> Stop:
    def run() -> Path:
        """Encode until line 18 cannot be read, repair the line, and return the output, which is not there yet."""
        output, whole = tmp_path / "vectors.npy", source.read_bytes()
        lines = whole.splitlines(keepends=True)
        source.write_bytes(b"".join([*lines[:17], b"Stra\xdfe\n", *lines[18:]]))
        with pytest.raises(UserError) as error:
            encode(output)
        source.write_bytes(whole)
        assert str(error.value).startswith(f"{source}:18: invalid UTF-8 (byte 5 of the line); ")
        assert not output.exists()
        return output

    return run


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_the_vectors_of_the_lines(encode: Encode, encoder: SentenceEncoder, tmp_path: Path) -> None:
    done = encode(tmp_path / "vectors.npy", lang="deu")
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r", allow_pickle=False)
    assert done.path == tmp_path / "vectors.npy"
    assert (done.lines, done.size, done.empty_lines, done.resumed) == (28, 16, 2, 0)
    assert vectors.dtype == np.float32 and vectors.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(vectors, encoder.encode(LINES, "de"), atol=1e-6)
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy"]


@pytest.mark.slow
def test_files_of_every_kind_give_the_same_file(encode: Encode, source: Path, tmp_path: Path) -> None:
    encode(tmp_path / "plain.npy")
    plain = source.read_bytes()
    crlf, mark = plain.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + plain
    for changed in (gzip.compress(plain), crlf, mark, plain[:-1]):
        source.write_bytes(changed)
        encode(tmp_path / "other.npy")
        assert (tmp_path / "other.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()


def test_float16_and_vectors_as_the_model_gives_them(encode: Encode, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "raw", normalize=False), device="cpu")
    expected = encoder.encode(LINES, normalize=False)
    encode(tmp_path / "half.npy", encoder, dtype="float16", normalize=False)
    half = np.load(tmp_path / "half.npy")
    assert half.dtype == np.float16 and not np.allclose(np.linalg.norm(expected, axis=1), 1, atol=0.1)
    np.testing.assert_allclose(half, expected, atol=1e-2)


OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "the same": ({}, 15), "dtype": ({"dtype": "float16"}, 0), "batch tokens": ({"batch_tokens": 64}, 0),
    "normalize": ({"normalize": False}, 0), "language": ({"lang": "en"}, 0), "encoder": ({}, 0), "input": ({}, 10),
    "short input": ({}, 10),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_chunks_of_another_run_are_used_only_if_they_are_the_same(encode, interrupted, source, tmp_path, what):
    output, (options, resumed) = interrupted(), OTHERS[what]
    (tmp_path / f"vectors.npy.work/.chunk-000003-{0:016}.npy.123.tmp").write_text("{")  # of a run that was killed
    if what == "encoder":
        options = {"encoder": SentenceEncoder.load(write_encoder(tmp_path / "other", seed=8), device="cpu")}
    elif "input" in what:
        write(source, LINES[:14] if "short" in what else [*LINES[:14], "Vogel", *LINES[15:]])
    done = encode(output, **options)
    assert done.resumed == resumed and (what != "the same" or (done.lines, done.empty_lines) == (28, 2))
    encode(tmp_path / "whole.npy", **options)
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert not (tmp_path / "vectors.npy.work").exists()


def test_files_of_others_beside_the_chunks_stay(encode: Encode, interrupted: Stop, tmp_path: Path) -> None:
    output, others = interrupted(), [".notes.tmp", "chunk-notes.npy", "notes.txt"]
    for name in others:
        (tmp_path / "vectors.npy.work" / name).touch()
    encode(output)
    assert left_in(tmp_path / "vectors.npy.work") == others
    (tmp_path / "vectors.npy.work/whole.npy").touch()  # a name like one of ours, in a folder that is not
    with pytest.raises(UserError, match=r"vectors.npy.work: not the folder of an unfinished command"):
        encode(output)
    assert left_in(tmp_path / "vectors.npy.work") == [*others, "whole.npy"]


def test_who_cannot_read_the_output_cannot_read_what_is_kept_for_it(
    encode: Encode, interrupted: Stop, tmp_path: Path
) -> None:
    output = tmp_path / "vectors.npy"
    for mode in (0o640, 0o600):
        output.touch()
        output.chmod(mode)
        with pytest.raises(AssertionError):  # because the output is there
            interrupted()
        assert not (tmp_path / "vectors.npy.work").stat().st_mode & (0o007 if mode == 0o640 else 0o077)
    encode(output)
    assert output.stat().st_mode & 0o777 == 0o600


def test_two_processes_do_not_write_one_file(encode: Encode, interrupted: Stop, tmp_path: Path) -> None:
    output, work = interrupted(), tmp_path / "vectors.npy.work"
    with (work / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the lock of another open file, as of another process
        before = left_in(work)
        with pytest.raises(UserError, match=r"vectors.npy: another process is writing it; wait for it"):
            encode(output)
        assert left_in(work) == before
    assert encode(output).resumed == 15


def test_long_lines_make_chunks_of_fewer_lines(encode, interrupted, encoder, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "CHUNK_LINES", 1000)
    output = interrupted()
    sizes = [len(np.load(path)) for path in sorted(output.with_name("vectors.npy.work").glob("chunk-*"))]
    lengths = np.array([len(line) for line in LINES])
    for start, stop in itertools.pairwise([0, *np.cumsum(sizes)]):
        assert lengths[start : stop - 1].sum() < 100 <= lengths[start:stop].sum()
    encode(output)
    np.testing.assert_allclose(np.load(output), encoder.encode(LINES), atol=1e-6)


def test_a_write_that_fails_names_the_file(encode: Encode, encoder: SentenceEncoder, tmp_path: Path) -> None:
    output, limits = tmp_path / "vectors.npy", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, limits[1]))  # two chunks and some bytes
    try:
        with pytest.raises(OSError) as error:
            encode(output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG and str(error.value.filename).startswith(str(output))
    assert encode(output).resumed == 28
    np.testing.assert_allclose(np.load(output), encoder.encode(LINES), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "world_size"), [(28, 3), (2, 3), (1, 1)])
def test_processes_share_the_parts_of_a_folder(encode, encoder, source, tmp_path, monkeypatch, count, world_size):
    monkeypatch.setattr(encoding, "PART_CHUNKS", 2)
    write(source, LINES[:count])
    folder = tmp_path / "vectors"
    shared = {"parts": True, "world_size": world_size}
    done = [encode(folder, rank=rank, **shared) for rank in range(world_size)]
    assert sum(each.lines for each in done) == count
    vectors = Vectors(folder)
    assert len(vectors.manifest.parts) == -(-count // 10) and vectors.manifest.origin.encoder == encoder.fingerprint()
    np.testing.assert_allclose(vectors.read(slice(None)), encoder.encode(LINES[:count]), atol=1e-6)
    (tmp_path / "lines").mkdir()
    lines = Lines.write(tmp_path / "lines", enumerate([line.strip() for line in LINES[:count]], 1))
    vectors.check_text(lines, source)
    files = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    (folder / "notes.txt").touch()
    again = [encode(folder, rank=rank, **shared) for rank in range(world_size)]
    assert sum(each.resumed for each in again) == count
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")} == files
    (folder / "part-00000-1234-c000.npy").touch()
    with monkeypatch.context() as patch, pytest.raises(TypeError):  # a command that is killed
        patch.setattr(encoding, "replace_file", None)
        encode(folder, path=str(write(tmp_path / "other.txt", ["Haus"])), parts=True)
    assert len([*folder.glob("*.work")]) == 1
    encode(folder, parts=True, dtype="float16")  # replaces them
    assert Vectors(folder).dtype == np.float16
    others = [".lock", "manifest.json", "notes.txt", "part-00000-1234-c000.npy"]
    assert left_in(folder) == sorted([*others, *(part.file for part in Vectors(folder).manifest.parts)])


def test_two_commands_do_not_write_one_folder(encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vectors").symlink_to("later")
    other, refused, first = str(write(tmp_path / "other.txt", ["Haus"])), list[str](), SentenceEncoder.encode

    def encode_both(self: SentenceEncoder, *given: Any, **options: Any) -> np.ndarray:
        for world_size in (1, 2):
            with pytest.raises(UserError) as error:
                encode(tmp_path / "vectors", path=other, parts=True, world_size=world_size)
            refused.append(str(error.value))
        return first(self, *given, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", encode_both)
    assert encode(tmp_path / "vectors", parts=True).lines == len(Vectors(tmp_path / "later")) == 28
    error = f"{tmp_path}/later: another process is writing it; wait for it, or write elsewhere"
    assert {*refused} == {error}


@pytest.mark.parametrize("kind", ["sentence encoder", "search index", "data directory", "folder with another manifest"])
def test_a_folder_of_something_else_stays(encode: Encode, tmp_path: Path, kind: str) -> None:
    if kind == "sentence encoder":
        write_encoder(tmp_path / "there")
    else:
        (tmp_path / "there").mkdir()
        content = {"search index": {"parts": []}, "data directory": {"format": "xrep-data"}}.get(kind, {})
        (tmp_path / "there/manifest.json").write_text(json.dumps(content))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=rf"there: a {kind}.*; name a new folder"):
        encode(tmp_path / "there", parts=True)
    assert contents(tmp_path) == before


def test_what_several_processes_cannot_share(encode: Encode, tmp_path: Path) -> None:
    for options, problem in (
        ({"path": "-", "parts": True}, "several processes cannot share what can be read once only; name a file"),
        ({}, "v.npy: several processes cannot write one file; name a folder"),
        ({"rank": 1, "world_size": 1, "parts": True}, "this is process 1 of 1; the environment variable RANK must"),
    ):
        with pytest.raises(UserError, match=problem):
            encode(tmp_path / "v.npy", **{"world_size": 2, **options})


def test_vectors_that_are_not_finite_name_their_line(encode: Encode, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "raw", normalize=False), device="cpu")
    output = tmp_path / "vectors.npy"
    norm = [module for module in encoder.model.modules() if isinstance(module, torch.nn.LayerNorm)][-1]
    with torch.no_grad():
        norm.weight.mul_(1e6)
    encode(output, encoder, normalize=False)
    first = 1 + int(np.argmax((np.abs(np.load(output)) > 65504).any(axis=1)))
    with pytest.raises(UserError, match=rf"lines.txt:{first}: its vector is not finite in float16; use float32 or"):
        encode(output, encoder, normalize=False, dtype="float16")
    with torch.no_grad():
        norm.weight.fill_(torch.nan)
    with pytest.raises(UserError, match=r"lines.txt:1: its vector is not finite in float32; check the encoder"):
        encode(output, encoder, normalize=False)
    assert left_in(tmp_path) == ["lines.txt", "raw", "vectors.npy"]
