"""``xrep-encode``: its file, its types of numbers, and several ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import write_lines
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.programs import run_on_ranks
from tests.support.runs import environment
from xrep.inference import encoding
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.vectors import Vectors

GERMAN = [pair[0] for pair in sentence_pairs(1000)]


def test_a_line_says_what_was_written(shared_encoder: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a line that cannot be read, the command goes on behind what it has encoded."""
    monkeypatch.setattr(encoding, "CHUNK_LINES", 2)
    line = ["--path", shared_encoder, "--input", "lines.txt", "--output", "v.npy", "--device", "cpu"]
    (cli.folder / "lines.txt").write_bytes("der Fluss\n\nein Haus\nbr\xfccke\n".encode("latin1"))
    done = cli("encode", *line)
    error = "lines.txt:4: invalid UTF-8 (byte 3 of the line); convert the file, for example: iconv -f latin1 -t utf-8"
    assert (done.code, done.out, done.err) == (2, "", f"xrep-encode: error: {error}\n")
    assert len(list((cli.folder / "v.npy.work").glob("chunk-*"))) == 1
    write_lines(cli.folder / "lines.txt", ["der Fluss", "", "ein Haus", "brücke"])
    done = cli("encode", *line)
    assert done.out.startswith("4 lines, 2 of them before, ") and done.err == ""
    assert done.out.endswith(" a second, [4, 16] float32; 1 lines were empty: v.npy\n")
    assert sorted(os.listdir(cli.folder)) == ["lines.txt", "v.npy"]


@pytest.mark.slow
def test_types_of_the_file_and_of_the_computation(shared_encoder: Path, cli: Commands) -> None:
    write_lines(cli.folder / "lines.txt", GERMAN)

    def encoded(options: str) -> np.ndarray:
        line = f"--path {shared_encoder} --input lines.txt --output {len(options)}.npy --device cpu {options}"
        assert cli("encode", *line.split()).code == 0
        return np.load(cli.folder / f"{len(options)}.npy")

    encoder = SentenceEncoder.load(shared_encoder, device="cpu")
    expected, half = encoder.encode(GERMAN), encoded("--dtype float16")
    np.testing.assert_allclose(encoded(""), expected, atol=1e-6)
    raw = encoded("--batch-tokens 100 --lang deu --no-normalize")
    np.testing.assert_allclose(raw, encoder.encode(GERMAN, normalize=False), atol=1e-5)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, expected, atol=1e-3)
    cosines = (encoded("--precision bfloat16") * expected).sum(axis=1)
    assert 0.99 < cosines.min() < 1 - 1e-6


@pytest.mark.slow
def test_ranks_share_a_folder_of_parts(shared_encoder: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "lines.txt", GERMAN * 70)
    given = ["--path", shared_encoder, "--input", source, "--output", tmp_path / "v", "--device", "cpu", "--json"]
    finished = run_on_ranks(2, "xrep_cli.encode", *given, environment=environment())
    assert finished.returncode == 0, finished.stderr
    written = list(map(json.loads, finished.stdout.splitlines()))
    assert [done["path"] for done in written] == [str(tmp_path / "v")] * 2
    assert sorted(done["lines"] for done in written) == [70_000 - (1 << 16), 1 << 16]
    vectors = Vectors(tmp_path / "v")
    expected = SentenceEncoder.load(shared_encoder, device="cpu").encode(GERMAN)
    np.testing.assert_allclose(vectors.read(slice(-1000, None)), expected, atol=1e-6)
    assert len(vectors) == 70_000 and len(list((tmp_path / "v").glob("[!.]*"))) == 3
