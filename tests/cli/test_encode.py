"""``xrep-encode``: its file, its types of numbers, and several ranks."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.programs import run_on_ranks
from tests.support.runs import contents, environment
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import multiplies_bfloat16
from xrep.store.vectors import Vectors

GERMAN = [pair[0] for pair in sentence_pairs(1000)]


def test_a_line_says_what_was_written(shared_encoder: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that cannot be read leaves nothing."""
    monkeypatch.setattr("xrep.store.texts.CHUNK_LINES", 2)
    line = ["--path", shared_encoder, "--input", "lines.txt", "--output", "v.npy", "--device", "cpu"]
    (cli.folder / "lines.txt").write_bytes("der Fluss\n\nein Haus\nbr\xfccke\n".encode("latin1"))
    done = cli("encode", *line)
    error = "lines.txt:4: invalid UTF-8 (byte 3 of the line); convert the file, for example: iconv -f latin1 -t utf-8"
    assert (done.code, done.out, done.err) == (2, "", f"xrep-encode: error: {error}\n")
    assert os.listdir(cli.folder) == ["lines.txt"]
    write_lines(cli.folder / "lines.txt", ["der Fluss", "", "ein Haus", "brücke"])
    done = cli("encode", *line)
    assert done.out.startswith("4 lines, ") and done.err == ""
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
    assert cosines.min() > 0.99
    if multiplies_bfloat16():  # other processors compute in float32
        assert cosines.min() < 1 - 1e-6


@pytest.mark.slow
def test_ranks_share_a_folder_of_parts_and_a_file(shared_encoder: Path, tmp_path: Path, cli: Commands) -> None:
    source = write_lines(tmp_path / "lines.txt", GERMAN * 70)
    given = ["--path", shared_encoder, "--input", source, "--device", "cpu", "--json", "--output"]
    for name in ("v", "v.npy"):
        assert cli("encode", *given, f"alone-{name}").code == 0
        done = run_on_ranks(2, "xrep_cli.encode", *given, tmp_path / name, environment=environment())
        assert done.returncode == 0, done.stderr
        assert sorted(os.listdir(tmp_path / f"{name}.job")) == ["finished.json", "lock"]
        summary, _ = json.JSONDecoder().raw_decode(done.stdout)  # each process that finds all done says so
        assert (summary["path"], summary["lines"]) == (str(tmp_path / name), 70_000)
    assert contents(tmp_path / "v") == contents(tmp_path / "alone-v")
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "alone-v.npy").read_bytes()
    assert (Vectors(tmp_path / "v").stored(slice(None)) == np.load(tmp_path / "v.npy")).all()
    assert len(Vectors(tmp_path / "v")) == 70_000 and len(os.listdir(tmp_path / "v")) == 3
