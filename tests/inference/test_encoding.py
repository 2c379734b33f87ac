"""Encoding of the lines of a file into the rows of a .npy file, also after interruptions."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.inference import encoding
from xrep.inference.encoding import encode_file
from xrep.inference.sentence_encoder import SentenceEncoder

LINES = [pair[0] for pair in sentence_pairs(23)] + [
    "",
    "Haus",
    "ein rotes Haus " * 100,
    "  ",
    "日本語 \N{GRINNING FACE}",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("run") / "best")


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> SentenceEncoder:
    return SentenceEncoder.load(checkpoint, device="cpu")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_LINES", 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    return path


def interrupted(encoder: SentenceEncoder, source: Path, output: Path) -> None:
    """Encode until line 18 cannot be read, then repair the line."""
    whole = source.read_bytes()
    lines = whole.splitlines(keepends=True)
    source.write_bytes(b"".join([*lines[:17], b"Stra\xdfe\n", *lines[18:]]))
    with pytest.raises(UserError) as error:
        encode_file(encoder, str(source), output, show_progress=False)
    source.write_bytes(whole)
    assert str(error.value).startswith(f"{source}:18: invalid UTF-8 (byte 5 of the line); ")
    assert not output.exists()


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_the_vectors_of_the_lines(encoder: SentenceEncoder, source: Path, tmp_path: Path) -> None:
    done = encode_file(encoder, str(source), tmp_path / "vectors.npy", lang="deu", show_progress=False)
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r", allow_pickle=False)
    assert (done.path, done.lines, done.size, done.empty_lines, done.resumed) == (
        tmp_path / "vectors.npy",
        28,
        16,
        2,
        0,
    )
    assert vectors.dtype == np.float32 and vectors.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(vectors, encoder.encode(LINES, "de"), atol=1e-6)
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy"]


@pytest.mark.parametrize("shape", ["gzip", "crlf", "bom", "no newline at the end"])
def test_files_of_every_kind_give_the_same_file(
    encoder: SentenceEncoder, source: Path, tmp_path: Path, shape: str
) -> None:
    encode_file(encoder, str(source), tmp_path / "plain.npy", show_progress=False)
    plain = source.read_bytes()
    changed = {
        "gzip": gzip.compress(plain),
        "crlf": plain.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + plain,
        "no newline at the end": plain[:-1],
    }
    source.write_bytes(changed[shape])
    encode_file(encoder, str(source), tmp_path / "other.npy", show_progress=False)
    assert (tmp_path / "other.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()


def test_float16_and_vectors_as_the_model_gives_them(source: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "raw", normalize=False), device="cpu")
    expected = encoder.encode(LINES, normalize=False)
    encode_file(encoder, str(source), tmp_path / "half.npy", dtype="float16", normalize=False, show_progress=False)
    half = np.load(tmp_path / "half.npy")
    assert half.dtype == np.float16 and not np.allclose(np.linalg.norm(expected, axis=1), 1, atol=0.1)
    np.testing.assert_allclose(half, expected, atol=1e-2)


@pytest.mark.parametrize("chunk_lines", [1, 4, 28, 1000])
def test_a_run_that_stopped_goes_on_and_writes_the_same_file(
    encoder: SentenceEncoder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_lines: int
) -> None:
    monkeypatch.setattr(encoding, "CHUNK_LINES", chunk_lines)
    encode_file(encoder, str(source), tmp_path / "whole.npy", show_progress=False)
    output = tmp_path / "vectors.npy"
    interrupted(encoder, source, output)
    resumed = 17 - 17 % chunk_lines if chunk_lines < 18 else 0
    kept = ["vectors.npy.partial", "vectors.npy.partial.json"] if resumed else []
    assert left_in(tmp_path) == ["lines.txt", *kept, "whole.npy"]
    done = encode_file(encoder, str(source), output, show_progress=False)
    assert (done.resumed, done.lines, done.empty_lines) == (resumed, 28, 2)
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy", "whole.npy"]


def test_more_than_the_journal_says_is_cut_off_and_less_begins_anew(
    encoder: SentenceEncoder, source: Path, tmp_path: Path
) -> None:
    encode_file(encoder, str(source), tmp_path / "whole.npy", show_progress=False)
    output, partial = tmp_path / "vectors.npy", tmp_path / "vectors.npy.partial"
    for change, resumed in ((+77, 15), (-1, 0), (-10_000, 0)):
        interrupted(encoder, source, output)
        data = partial.read_bytes()
        partial.write_bytes((data + b"x" * change) if change > 0 else data[: max(0, len(data) + change)])
        assert encode_file(encoder, str(source), output, show_progress=False).resumed == resumed
        assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
        assert not list(tmp_path.glob("*partial*"))
        output.unlink()


def test_a_journal_that_a_finished_run_left_is_no_hindrance(
    encoder: SentenceEncoder, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "vectors.npy"
    interrupted(encoder, source, output)
    (tmp_path / "vectors.npy.partial").unlink()
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(UserError, match="empty.txt: the file is empty"):
        encode_file(encoder, str(empty), output, show_progress=False)
    assert left_in(tmp_path) == ["empty.txt", "lines.txt"]
    empty.unlink()

    interrupted(encoder, source, output)
    (tmp_path / "vectors.npy.partial").unlink()
    (tmp_path / ".vectors.npy.partial.json.123.tmp").write_text("{")
    assert encode_file(encoder, str(source), output, dtype="float16", show_progress=False).resumed == 0
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy"]


OTHERS = {
    "dtype": {"dtype": "float16"},
    "batch tokens": {"batch_tokens": 64},
    "normalize": {"normalize": False},
    "language": {"lang": "en"},
}


@pytest.mark.parametrize("what", [*OTHERS, "encoder", "input", "short input", "journal"])
def test_what_another_run_began_is_refused(encoder: SentenceEncoder, source: Path, tmp_path: Path, what: str) -> None:
    output, journal = tmp_path / "vectors.npy", tmp_path / "vectors.npy.partial.json"
    interrupted(encoder, source, output)
    partial = (tmp_path / "vectors.npy.partial").read_bytes()
    why = f"it was made with another {what}"
    if what == "encoder":
        encoder = SentenceEncoder.load(write_encoder(tmp_path / "other", seed=8), device="cpu")
    elif what == "input":
        source.write_text(source.read_text(encoding="utf-8").replace(LINES[14], LINES[13]), encoding="utf-8")
        why = "its 15 lines are not the first ones of this input"
    elif what == "short input":
        source.write_text("".join(line + "\n" for line in LINES[:14]), encoding="utf-8")
        why = "its 15 lines are not the first ones of this input"
    elif what == "journal":
        journal.write_text('{"facts": 3, "lines": 15, "sha256": "0"}')
        why = "its journal is damaged"
    with pytest.raises(UserError) as error:
        encode_file(encoder, str(source), output, show_progress=False, **OTHERS.get(what, {}))
    expected = f"{output}.partial: an unfinished output is there, and {why}; remove {journal} to begin anew"
    assert str(error.value) == expected
    assert (tmp_path / "vectors.npy.partial").read_bytes() == partial and not output.exists()
    journal.unlink()
    assert encode_file(encoder, str(source), output, show_progress=False, **OTHERS.get(what, {})).resumed == 0


def test_other_lines_after_those_encoded_are_welcome(encoder: SentenceEncoder, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.npy"
    interrupted(encoder, source, output)
    source.write_text("".join(line + "\n" for line in [*LINES[:15], "Vogel"]), encoding="utf-8")
    done = encode_file(encoder, str(source), output, show_progress=False)
    assert (done.resumed, done.lines) == (15, 16)
    np.testing.assert_allclose(np.load(output), encoder.encode([*LINES[:15], "Vogel"]), atol=1e-6)


def test_two_processes_do_not_write_one_file(encoder: SentenceEncoder, source: Path, tmp_path: Path) -> None:
    output, partial = tmp_path / "vectors.npy", tmp_path / "vectors.npy.partial"
    interrupted(encoder, source, output)
    before = partial.read_bytes()
    with partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the lock of another open file, as of another process
        with pytest.raises(UserError, match=r"vectors.npy.partial: another process is writing this file; wait for it"):
            encode_file(encoder, str(source), output, show_progress=False)
        assert partial.read_bytes() == before
    assert encode_file(encoder, str(source), output, show_progress=False).resumed == 15


def test_long_lines_make_chunks_of_fewer_lines(
    encoder: SentenceEncoder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "CHUNK_LINES", 1000)
    output = tmp_path / "vectors.npy"
    interrupted(encoder, source, output)
    lines = json.loads((tmp_path / "vectors.npy.partial.json").read_text())["lines"]
    lengths = np.cumsum([len(line) for line in LINES[:17]])
    assert lengths[lines - 1] >= 100 and lengths[16] - lengths[lines - 1] < 100
    encode_file(encoder, str(source), output, show_progress=False)
    np.testing.assert_allclose(np.load(output), encoder.encode(LINES), atol=1e-6)


def test_a_write_that_fails_names_the_file(encoder: SentenceEncoder, source: Path, tmp_path: Path) -> None:
    output, limits = tmp_path / "vectors.npy", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, limits[1]))  # a header, two chunks and some bytes
    try:
        with pytest.raises(OSError) as error:
            encode_file(encoder, str(source), output, show_progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, f"{output}.partial")
    assert encode_file(encoder, str(source), output, show_progress=False).resumed == 10
    np.testing.assert_allclose(np.load(output), encoder.encode(LINES), atol=1e-6)


@pytest.mark.parametrize(("count", "world_size"), [(28, 2), (28, 3), (2, 3)])
def test_shards_are_the_whole(
    encoder: SentenceEncoder, source: Path, tmp_path: Path, count: int, world_size: int
) -> None:
    source.write_text("".join(line + "\n" for line in LINES[:count]), encoding="utf-8")
    shards = [
        encode_file(encoder, str(source), tmp_path / "v.npy", rank=rank, world_size=world_size, show_progress=False)
        for rank in range(world_size)
    ]
    assert [shard.path.name for shard in shards] == [f"v.{i:05d}-of-{world_size:05d}.npy" for i in range(world_size)]
    assert max(shard.lines for shard in shards) - min(shard.lines for shard in shards) <= 1
    together = np.concatenate([np.load(shard.path) for shard in shards])
    np.testing.assert_allclose(together, encoder.encode(LINES[:count]), atol=1e-6)
    with pytest.raises(UserError, match="several processes cannot share what can be read once only; name a file"):
        encode_file(encoder, "-", tmp_path / "v.npy", rank=0, world_size=2, show_progress=False)


def test_vectors_that_are_not_finite_name_their_line(source: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "raw", normalize=False), device="cpu")
    output, options = tmp_path / "vectors.npy", {"normalize": False, "show_progress": False}
    norm = [module for module in encoder.model.modules() if isinstance(module, torch.nn.LayerNorm)][-1]
    with torch.no_grad():
        norm.weight.mul_(1e6)
    encode_file(encoder, str(source), output, **options)
    first = 1 + int(np.argmax((np.abs(np.load(output)) > 65504).any(axis=1)))
    with pytest.raises(UserError, match=rf"lines.txt:{first}: its vector is not finite in float16; use float32 or"):
        encode_file(encoder, str(source), output, dtype="float16", **options)
    with torch.no_grad():
        norm.weight.fill_(torch.nan)
    with pytest.raises(UserError, match=r"lines.txt:1: its vector is not finite in float32; check the encoder"):
        encode_file(encoder, str(source), output, **options)
    assert not list(tmp_path.glob("*partial*"))


def test_towers_are_chosen_by_any_spelling_of_the_language(source: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "two", towers="separate"), device="cpu")
    encode_file(encoder, str(source), tmp_path / "en.npy", lang="eng", show_progress=False)
    np.testing.assert_allclose(np.load(tmp_path / "en.npy"), encoder.encode(LINES, "en"), atol=1e-6)
    assert np.abs(np.load(tmp_path / "en.npy") - encoder.encode(LINES, "de")).max() > 0.1
    for lang, message in ((None, "no language was named; known: de, en"), ("fra", "no tower for the language 'fr'")):
        with pytest.raises(UserError, match=message):
            encode_file(encoder, str(source), tmp_path / "other.npy", lang=lang, show_progress=False)
    assert not list(tmp_path.glob("other*"))
