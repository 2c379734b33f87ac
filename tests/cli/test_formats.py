"""Commands on text in other formats than lines, and on standard input and output."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.translators import write_translator
from tests.text.test_formats import XLIFF1, jsonl, tmx, xliff, zipped
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli import encode, generate, mine, preprocess, search

PAIRS = sentence_pairs(60)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_encoder(folder / "encoder", towers="separate")
    write_translator(folder / "translator")
    return folder


@pytest.fixture
def here(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("encoder", "translator"):
        (tmp_path / name).symlink_to(models / name)
    monkeypatch.chdir(tmp_path)
    files = {"a.tmx": tmx(PAIRS), "a.jsonl": jsonl(PAIRS), "a.xlf": xliff(XLIFF1, PAIRS)}
    lines = {code: "".join(f"{pair[number]}\n" for pair in PAIRS).encode() for number, code in enumerate(("de", "en"))}
    files |= {"a.zip": zipped({f"x.de-en.{code}": text for code, text in lines.items()}), **lines}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def given_input(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Make ``/dev/stdin`` of the readers a file."""
    real = open

    def opened(file: object, *arguments: object, **options: object) -> object:
        return real(path if file == "/dev/stdin" else file, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("xrep.text.lines.open", opened, raising=False)


@pytest.mark.parametrize("file", ["a.tmx", "a.jsonl", "a.xlf", "a.zip", "a.jsonl:de", "-"])
def test_encoding(here: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    given_input(monkeypatch, here / "de")
    options = ["--path", "encoder", "--lang", "de", "--device", "cpu"]
    assert encode.main([*options, "--input", file, "--output", "v.npy"]) == 0
    expected = SentenceEncoder.load("encoder", device="cpu").encode([de for de, _ in PAIRS], lang="de")
    np.testing.assert_allclose(np.load("v.npy"), expected, atol=1e-5)


def test_vectors_and_pairs_on_standard_output(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    given_input(monkeypatch, here / "de")
    options = ["--path", "encoder", "--device", "cpu"]
    assert encode.main([*options, "--input", "de", "--lang", "de", "--output", "v.npy"]) == 0
    capfdbinary.readouterr()
    assert encode.main([*options, "--input", "-", "--lang", "de", "--output", "-"]) == 0
    printed = capfdbinary.readouterr()
    np.testing.assert_array_equal(np.load(io.BytesIO(printed.out)), np.load("v.npy"))
    assert printed.err.startswith(b"60 lines, ") and printed.err.count(b"\n") == 1
    texts = ["--source", "-", "--source-lang", "de", "--target", "a.tmx", "--target-lang", "en"]
    assert mine.main([*options, *texts, "--output", "-"]) == 0
    printed = capfdbinary.readouterr()
    rows = [line.split("\t") for line in printed.out.decode().splitlines()]
    sides = [{pair[number] for pair in PAIRS} for number in range(2)]
    assert rows and all(row[1] in sides[0] and row[2] in sides[1] for row in rows)
    assert b"60 x 60 sentences" in printed.err
    files = [*options, "--source", "de", "--source-lang", "de", "--target", "en", "--target-lang", "en"]
    assert mine.main([*files, "--output", "m.tsv"]) == 0
    assert Path("m.tsv").read_bytes() == printed.out


def test_a_pipe_is_written_to_and_not_replaced(here: Path) -> None:
    texts = ["--source", "de", "--source-lang", "de", "--target", "en", "--target-lang", "en"]
    commands = {
        "encode": (encode.main, ["--input", "de", "--lang", "de"], "v.npy"),
        "mine": (mine.main, texts, "m.tsv"),
    }
    for name, (main, given, output) in commands.items():
        line = ["--path", "encoder", "--device", "cpu", *given, "--output"]
        assert main([*line, output]) == 0
        os.mkfifo(name)
        with subprocess.Popen(["cat", name], stdout=subprocess.PIPE) as reader:
            assert main([*line, name]) == 0
            assert reader.communicate()[0] == Path(output).read_bytes()
        assert Path(name).is_fifo() and not list(here.glob(f"{name}*.work"))
        assert main([*line, os.devnull]) == 0 and Path(os.devnull).is_char_device()


def test_preprocessing_and_exclusion(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "test.tmx").write_bytes(tmx(PAIRS[:10]))
    options = ["--vocab-size", "100", "--valid-size", "0", "--exclude", "test.tmx"]
    for name in ("a.tmx", "a.jsonl", "a.zip", "a.xlf"):
        assert preprocess.main(["--bitext", f"de-en={name}", *options, "--destdir", f"bin-{name}"]) == 0
        assert "train: de-en 50 pairs" in capsys.readouterr().out


def test_search_and_translation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["build", "--path", "encoder", "--input", "a.zip", "--lang", "en", "--output", "index", "--device", "cpu"]
    assert search.main(build) == 0
    assert search.main(["query", "index", PAIRS[4][1], "-k", "1", "--lang", "en", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith(f"1\t1.0000\ta.zip:5\t{PAIRS[4][1]}\n")
    options = ["--path", "translator", "--device", "cpu", "--max-length-b", "5"]
    for file in ("a.tmx", "de"):
        given = [*options, "--input", file, "--source-lang", "de", "--output", f"{file}.out", "--reference", "a.xlf:en"]
        assert generate.main(given) == 0
    assert Path("a.tmx.out").read_bytes() == Path("de.out").read_bytes()


def test_a_summary_and_an_output_do_not_share_standard_output(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert encode.main(["--path", "encoder", "--input", "de", "--output", "-", "--json"]) == 2
    assert "--json and the vectors both go to standard output; name an --output file" in capsys.readouterr().err
    texts = ["--source", "-", "--target", "-", "--path", "encoder", "--output", "m.tsv"]
    assert mine.main(texts) == 2
    assert "both texts are standard input; name a file for one of them" in capsys.readouterr().err
