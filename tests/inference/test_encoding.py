"""Encoding of the lines of a file into the rows of a .npy file, also after interruptions."""

from __future__ import annotations

import errno
import fcntl
import gzip
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
from xrep.errors import UserError
from xrep.inference import encoding
from xrep.inference.encoding import Encoded, encode_file
from xrep.inference.sentence_encoder import SentenceEncoder

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


def test_towers_are_chosen_by_any_spelling_of_the_language(encode, two_towers, tmp_path):
    encode(tmp_path / "en.npy", two_towers, lang="eng")
    np.testing.assert_allclose(np.load(tmp_path / "en.npy"), two_towers.encode(LINES, "en"), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_lines", [1, 4, 28])
def test_a_run_that_stopped_goes_on_and_writes_the_same_file(encode, interrupted, tmp_path, monkeypatch, chunk_lines):
    monkeypatch.setattr(encoding, "CHUNK_LINES", chunk_lines)
    encode(tmp_path / "whole.npy")
    output, resumed = interrupted(), 17 - 17 % chunk_lines
    kept = ["vectors.npy.partial", "vectors.npy.partial.json"] if resumed else []
    assert left_in(tmp_path) == ["lines.txt", *kept, "whole.npy"]
    done = encode(output)
    assert (done.resumed, done.lines, done.empty_lines) == (resumed, 28, 2)
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy", "whole.npy"]


@pytest.mark.slow
def test_more_than_the_journal_says_is_cut_off_and_less_begins_anew(encode, interrupted, tmp_path):
    encode(tmp_path / "whole.npy")
    for change, resumed in ((lambda data: data + b"x" * 77, 15), (lambda data: data[:-1], 0), (lambda data: b"", 0)):
        output, partial = interrupted(), tmp_path / "vectors.npy.partial"
        partial.write_bytes(change(partial.read_bytes()))
        assert encode(output).resumed == resumed
        assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
        assert not list(tmp_path.glob("*partial*"))
        output.unlink()
    interrupted()
    partial.unlink()  # a run that was killed just before it deleted its journal
    (tmp_path / ".vectors.npy.partial.json.123.tmp").write_text("{")
    assert encode(output, dtype="float16").resumed == 0
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy", "whole.npy"]


OTHERS: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "float16"}, "batch tokens": {"batch_tokens": 64}, "normalize": {"normalize": False},
    "language": {"lang": "en"}, "encoder": {}, "input": {}, "short input": {}, "journal": {},
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_what_another_run_began_is_refused(encode, interrupted, source, tmp_path, what):
    output, journal, options = interrupted(), tmp_path / "vectors.npy.partial.json", {**OTHERS[what]}
    partial = (tmp_path / "vectors.npy.partial").read_bytes()
    why = f"it was made with another {what}"
    if what == "encoder":
        options["encoder"] = SentenceEncoder.load(write_encoder(tmp_path / "other", seed=8), device="cpu")
    elif "input" in what:
        write(source, LINES[:14] if "short" in what else [*LINES[:14], "Vogel", *LINES[15:]])
        why = "its 15 lines are not the first ones of this input"
    elif what == "journal":
        journal.write_text("{")
        why = "its journal is damaged"
    with pytest.raises(UserError) as error:
        encode(output, **options)
    expected = f"{output}.partial: an unfinished output is there, and {why}; remove {journal} to begin anew"
    assert str(error.value) == expected
    assert (tmp_path / "vectors.npy.partial").read_bytes() == partial and not output.exists()
    journal.unlink()
    assert encode(output, **options).resumed == 0


def test_other_lines_after_those_encoded_are_welcome(encode, interrupted, encoder, source):
    output, lines = interrupted(), [*LINES[:15], "Vogel"]
    write(source, lines)
    done = encode(output)
    assert (done.resumed, done.lines) == (15, 16)
    np.testing.assert_allclose(np.load(output), encoder.encode(lines), atol=1e-6)


def test_two_processes_do_not_write_one_file(encode: Encode, interrupted: Stop, tmp_path: Path) -> None:
    output, partial = interrupted(), tmp_path / "vectors.npy.partial"
    before = partial.read_bytes()
    with partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the lock of another open file, as of another process
        with pytest.raises(UserError, match=r"vectors.npy.partial: another process is writing this file; wait for it"):
            encode(output)
        assert partial.read_bytes() == before
    assert encode(output).resumed == 15


def test_long_lines_make_chunks_of_fewer_lines(encode, interrupted, encoder, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "CHUNK_LINES", 1000)
    output = interrupted()
    lines = json.loads(output.with_name("vectors.npy.partial.json").read_text())["lines"]
    lengths = np.cumsum([len(line) for line in LINES[:17]])
    assert lengths[lines - 1] >= 100 and lengths[16] - lengths[lines - 1] < 100
    encode(output)
    np.testing.assert_allclose(np.load(output), encoder.encode(LINES), atol=1e-6)


def test_a_write_that_fails_names_the_file(encode: Encode, encoder: SentenceEncoder, tmp_path: Path) -> None:
    output, limits = tmp_path / "vectors.npy", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, limits[1]))  # a header, two chunks and some bytes
    try:
        with pytest.raises(OSError) as error:
            encode(output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, f"{output}.partial")
    assert encode(output).resumed == 10
    np.testing.assert_allclose(np.load(output), encoder.encode(LINES), atol=1e-6)


@pytest.mark.parametrize(("count", "world_size"), [(28, 3), (2, 3)])
def test_shards_are_the_whole(encode, encoder, source, tmp_path, count, world_size):
    write(source, LINES[:count])
    shards = [encode(tmp_path / "v.npy", rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [shard.path.name for shard in shards] == [f"v.{i:05d}-of-{world_size:05d}.npy" for i in range(world_size)]
    assert max(shard.lines for shard in shards) - min(shard.lines for shard in shards) <= 1
    together = np.concatenate([np.load(shard.path) for shard in shards])
    np.testing.assert_allclose(together, encoder.encode(LINES[:count]), atol=1e-6)
    with pytest.raises(UserError, match="several processes cannot share what can be read once only; name a file"):
        encode(tmp_path / "v.npy", path="-", rank=0, world_size=2)


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
    assert not list(tmp_path.glob("*partial*"))
