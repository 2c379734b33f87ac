"""Encoding of the lines of a file into the rows of a .npy file, also after interruptions."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from xrep.errors import UserError
from xrep.inference import encoding
from xrep.inference.encoding import Encoded, encode_file
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interrupts import Interrupted
from xrep.jobs.plan import Advance, Job, Stage
from xrep.store import lines as stored
from xrep.store.vectors import Vectors, text_digest

Encode, Stop = Callable[..., Encoded], Callable[[], Path]
LINES = [german for german, _ in sentence_pairs(23)]
LINES += ["", "Haus", "ein rotes Haus " * 100, "  ", "日本語 \N{GRINNING FACE}"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrep.store.lines.CHUNK_LINES", 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "lines.txt", LINES)


@pytest.fixture
def encode(encoder: SentenceEncoder, source: Path) -> Encode:
    def run(output: Path, encoder: SentenceEncoder = encoder, path: str = str(source), **options: Any) -> Encoded:
        return encode_file(encoder, path, output, show_progress=False, **options)

    return run


@pytest.fixture
def interrupted(encode: Encode, source: Path, tmp_path: Path) -> Stop:
    def run(units: int = 4) -> Path:
        """Encode until the file was read and three chunks are done, and return the output, which is not there yet."""
        output, do, done = tmp_path / "vectors.npy", Job.do, list[int]()

        def limited(job: Job, stage: Stage, number: int, advance: Advance) -> bool:
            if len(done) == units:
                raise KeyboardInterrupt
            done.append(number)
            return do(job, stage, number, advance)

        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(Interrupted, match="what is done is in .*npy.job"),
        ):
            patch.setattr(Job, "do", limited)
            encode(output)
        return output

    return run


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_the_vectors_of_the_lines(encode: Encode, encoder: SentenceEncoder, tmp_path: Path) -> None:
    done = encode(tmp_path / "vectors.npy", lang="deu")
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r", allow_pickle=False)
    assert done.path == str(tmp_path / "vectors.npy")
    assert (done.lines, done.size, done.empty_lines, done.resumed) == (28, 16, 2, 0)
    assert vectors.dtype == np.float32 and vectors.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(vectors, encoder.encode(LINES, "de"), atol=1e-6)
    assert left_in(tmp_path) == ["lines.txt", "vectors.npy"]


OTHERS: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "float16"}, "batch_tokens": {"batch_tokens": 64}, "normalize": {"normalize": False},
    "language": {"lang": "en"}, "prompt": {"prompt": "ein "}, "encoder": {}, "input": {}, "parts": {"parts": True},
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_unfinished_is_not_mixed_with_something_else(encode, interrupted, source, tmp_path, what):
    output, options, job = interrupted(), OTHERS[what], tmp_path / "vectors.npy.job"
    if what == "encoder":
        options = {"encoder": SentenceEncoder.load(write_encoder(tmp_path / "other", seed=8), device="cpu")}
    elif what == "input":
        write_lines(source, [*LINES[:14], "Vogel", *LINES[15:]])
    before = contents(job)
    with pytest.raises(UserError, match=f"job: an unfinished command is there, which differs in {what}; remove it to"):
        encode(output, **options)
    assert {**contents(job), "lock": b""} == {**before, "lock": b""} and not output.exists()


def test_who_cannot_read_the_output_cannot_read_what_is_kept_for_it(encode, interrupted, tmp_path):
    output = tmp_path / "vectors.npy"
    for mode in (0o640, 0o600):
        output.touch()
        output.chmod(mode)
        shutil.rmtree(tmp_path / "vectors.npy.job", ignore_errors=True)
        interrupted()
        assert not (tmp_path / "vectors.npy.job").stat().st_mode & (0o007 if mode == 0o640 else 0o077)
    encode(output)
    assert output.stat().st_mode & 0o777 == 0o600


def test_long_lines_make_chunks_of_fewer_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("xrep.store.lines.CHUNK_CHARACTERS", 100)
    assert stored.write_lines(tmp_path, enumerate(LINES, 1)) == len(LINES)
    lengths, starts = np.array([len(line) for line in LINES]), np.load(tmp_path / stored.CHUNKS).tolist()
    assert starts[0] == 0 and starts[-1] == len(LINES)
    for start, stop in itertools.pairwise(starts):
        assert lengths[start : stop - 1].sum() < 100
        assert stop - start == 5 or lengths[start:stop].sum() >= 100 or stop == len(LINES)


@pytest.mark.parametrize("count", [28, 2])
def test_a_folder_of_parts(encode, encoder, source, tmp_path, monkeypatch, count):
    """Other vectors are replaced, and files of others stay."""
    monkeypatch.setattr(encoding, "PART_CHUNKS", 2)
    write_lines(source, LINES[:count])
    folder = tmp_path / "vectors"
    assert encode(folder, parts=True).lines == count
    vectors = Vectors(folder)
    assert vectors.manifest and vectors.manifest.origin.encoder == encoder.fingerprint()
    assert vectors.starts == [*range(0, count, 10), count]
    np.testing.assert_allclose(vectors.read(slice(None)), encoder.encode(LINES[:count]), atol=1e-6)
    for number, (start, stop) in enumerate(itertools.pairwise(vectors.starts)):
        vectors.check_text(number, text_digest(LINES[start:stop]), source)
    before = contents(folder)
    (folder / "notes.txt").touch()
    (folder / "part-00000-1234.npy").touch()
    encode(folder, parts=True)
    assert contents(folder) == {**before, "notes.txt": b"", "part-00000-1234.npy": b""}
    encode(folder, parts=True, dtype="float16")
    assert Vectors(folder).dtype == np.float16
    parts = [part.file for part in Vectors(folder).manifest.parts]
    assert left_in(folder) == sorted(["manifest.json", "notes.txt", "part-00000-1234.npy", *parts])
    assert left_in(tmp_path) == ["lines.txt", "vectors"]


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
