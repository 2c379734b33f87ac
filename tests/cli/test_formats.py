"""Commands on text in other formats than lines, and on standard input and output."""

import io
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.text.test_formats import FORMATS
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext
from xrep_cli import encode

PAIRS = sentence_pairs(60)
ENCODER = ["--path", "encoder", "--device", "cpu"]
TEXTS = "--source de --source-lang de --target en --target-lang en".split()


@pytest.fixture
def here(tmp_path: Path, separate_encoder: Path, translator: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts in which ``-`` stands for the German one."""
    (tmp_path / "encoder").symlink_to(separate_encoder)
    (tmp_path / "translator").symlink_to(translator)
    for name in ("a.tmx", "a.xlf", "a.jsonl", "de-en.txt.zip"):
        (tmp_path / name).write_bytes(FORMATS[name](PAIRS))
    for side, code in enumerate(("de", "en")):
        write_lines(tmp_path / code, [pair[side] for pair in PAIRS])
    real = open

    def opened(file: Any, *arguments: Any, **options: Any) -> object:
        return real(tmp_path / "de" if file == "/dev/stdin" else file, *arguments, **options)

    for module in ("xrep.store.contents", "xrep.jobs.outputs"):
        monkeypatch.setattr(f"{module}.open", opened, raising=False)
    return tmp_path


@pytest.mark.parametrize("file", ["a.tmx", "a.jsonl", "a.xlf", "de-en.txt.zip", "a.jsonl:de", "-"])
def test_encoding(here: Path, cli: Commands, file: str) -> None:
    assert cli("encode", *ENCODER, "--lang", "de", "--input", file, "--output", "v.npy").code == 0
    expected = SentenceEncoder.load(here / "encoder", device="cpu").encode([de for de, _ in PAIRS], lang="de")
    np.testing.assert_allclose(np.load(here / "v.npy"), expected, atol=1e-5)


def test_vectors_on_standard_output(here, monkeypatch, capfdbinary):
    monkeypatch.chdir(here)
    assert encode.main([*ENCODER, "--input", "de", "--lang", "de", "--output", "v.npy"]) == 0
    capfdbinary.readouterr()
    assert encode.main([*ENCODER, "--input", "-", "--lang", "de", "--output", "-"]) == 0
    printed = capfdbinary.readouterr()
    np.testing.assert_array_equal(np.load(io.BytesIO(printed.out)), np.load("v.npy"))
    assert printed.err.startswith(b"60 lines, ") and printed.err.count(b"\n") == 1


@pytest.mark.slow
def test_pairs_on_standard_output(here: Path, cli: Commands) -> None:
    texts = "--source - --source-lang de --target a.tmx --target-lang en --output -"
    printed = cli("mine", *ENCODER, *texts.split())
    rows = [line.split("\t") for line in printed.out.splitlines()]
    german, english = ({pair[number] for pair in PAIRS} for number in range(2))
    assert rows and all(row[1] in german and row[2] in english for row in rows)
    assert "60 x 60 sentences" in printed.err
    assert cli("mine", *ENCODER, *TEXTS, "--output", "m.tsv").code == 0
    assert (here / "m.tsv").read_text(encoding="utf-8") == printed.out
    for name in ("m.tmx", "m.xlf", "m.jsonl", "m.csv"):
        assert cli("mine", *ENCODER, *TEXTS, "--output", name).code == 0
        assert [row[1:] for row in read_pairs(parse_bitext(f"de-en={here / name}"))] == [tuple(row[1:]) for row in rows]


@pytest.mark.slow
def test_a_pipe_is_written_to_and_not_replaced(here: Path, cli: Commands) -> None:
    for name, given, output in (("encode", ["--input", "de", "--lang", "de"], "v.npy"), ("mine", TEXTS, "m.tsv")):
        line = [*ENCODER, *given, "--output"]
        assert cli(name, *line, output).code == 0
        os.mkfifo(here / name)
        with subprocess.Popen(["cat", here / name], stdout=subprocess.PIPE) as reader:
            assert cli(name, *line, name).code == 0
            assert reader.communicate()[0] == (here / output).read_bytes()
        assert (here / name).is_fifo() and not list(here.glob(f"{name}*.job"))
        assert cli(name, *line, os.devnull).code == 0 and Path(os.devnull).is_char_device()


@pytest.mark.slow
def test_search_and_translation(here: Path, cli: Commands) -> None:
    assert cli("search", "build", *ENCODER, *"--input de-en.txt.zip --lang en --output index".split()).code == 0
    found = cli("search", "query", "index", PAIRS[4][1], *"-k 1 --lang en --device cpu".split())
    assert found.out == f"1\t1.0000\tde-en.txt.zip:5\t{PAIRS[4][1]}\n"
    options = "--path translator --device cpu --max-length-b 5 --source-lang de --reference a.xlf:en --input"
    for file in ("a.tmx", "de"):
        assert cli("generate", *options.split(), file, "--output", f"{file}.out").code == 0
    assert (here / "a.tmx.out").read_bytes() == (here / "de.out").read_bytes()
