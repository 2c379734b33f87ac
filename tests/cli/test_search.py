"""xrep-search as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.programs import run_program
from tests.support.runs import contents, environment
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli.search import main

PAIRS = sentence_pairs(60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of two towers, texts in two languages and an index."""
    folder = tmp_path_factory.mktemp("search")
    write_encoder(folder / "best", towers="separate")
    for side, language in enumerate(("de", "en")):
        (folder / f"lines.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        given = ["--path", "best", "--input", "lines.en", "--lang", "en", "--output", "index", "--device", "cpu"]
        assert main(["build", *given]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def test_a_query_prints_the_nearest_lines(capsys: pytest.CaptureFixture[str]) -> None:
    query = PAIRS[7][1]
    assert main(["query", "index", query, "-k", "3", "--lang", "en", "--device", "cpu"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 3 and rows[0] == ["1", "1.0000", "lines.en:8", query]
    assert main(["query", "index", PAIRS[0][0], "-k", "2", "--lang", "de", "--json", "--device", "cpu"]) == 0
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert answer["query"] == PAIRS[0][0] and len(answer["hits"]) == 2
    assert set(answer["hits"][0]) == {"score", "row", "file", "line", "text"}


@pytest.mark.parametrize(
    "line", ["index -k 1 A B", "-k 1 index A B", "index A -k 1 B", "index A B -k 1", "index -k 1 -- A B"]
)
def test_queries_stand_before_or_behind_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [{"A": PAIRS[3][1], "B": PAIRS[7][1]}.get(word, word) for word in line.split()]
    assert main(["query", "--lang", "en", "--device", "cpu", *words]) == 0
    assert [row.split("\t")[3] for row in capsys.readouterr().out.splitlines()] == [PAIRS[3][1], PAIRS[7][1]]


def test_queries_from_standard_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text(f"{PAIRS[3][1]}\n\n{PAIRS[5][1]}\n", encoding="utf-8")
    script = (
        "import os, sys; os.dup2(os.open(sys.argv.pop(), os.O_RDONLY), 0)\nfrom xrep_cli.search import main\nmain()"
    )
    (tmp_path / "from_file.py").write_text(script)
    given = ["query", "index", "-k", "1", "--lang", "en", "--device", "cpu", tmp_path / "queries.txt"]
    finished = run_program("from_file", *given, environment=environment(tmp_path))
    rows = [line.split("\t") for line in finished.stdout.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [("1", PAIRS[3][1]), ("3", PAIRS[5][1])], finished


def test_lines_are_added_and_the_summary_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["--lang", "en", "--device", "cpu"]
    output = str(tmp_path / "index")
    build = ["build", "--path", "best", "--input", "lines.en", "--output", output, "--quantize", "int8", *given]
    assert main(build) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("60 sentences of 60 lines, exact search, int8, ") and printed.err == ""
    assert "; recall@10 1.000 (" in printed.out and printed.out.endswith(f": {output}\n")
    assert main(["add", output, "--input", "lines.de", "--lang", "de", "--json", "--device", "cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 120 and told["recall"]["k"] == 10 and told["path"] == output
    assert [source["name"] for source in told["sources"]] == ["lines.en", "lines.de"]
    assert main(["query", output, PAIRS[9][0], "-k", "1", "--lang", "de", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"1\t1.0000\tlines.de:10\t{PAIRS[9][0]}\n"


@pytest.mark.parametrize("quantize", ["none", "int8", "binary"])
def test_the_size_is_that_of_all_files(quantize: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the text and its places, as the help says; and with them, as the line after building says."""
    encoder, output = write_encoder(tmp_path / "wide" / "best", size=256), tmp_path / "index"
    lines = [f"{one} {number}" for number, (one, _) in enumerate(sentence_pairs(600))]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    given = ["--path", str(encoder), "--input", str(tmp_path / "lines.txt"), "--lang", "de", "--device", "cpu"]
    assert main(["build", *given, "--output", str(output), "--quantize", quantize]) == 0
    printed, plain = capsys.readouterr().out, 4 * 256 * 600
    sizes = {file.name: file.stat().st_size for file in output.iterdir()}
    found = re.search(r", ([\d.]+) times the bytes of float32 vectors \(index\.faiss ([\d.]+)\)", printed)
    assert found and float(found[1]) == pytest.approx(sum(sizes.values()) / plain, abs=0.006)
    assert float(found[2]) == pytest.approx(sizes["index.faiss"] / plain, abs=0.006)
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    said = re.search(rf"([\d.]+) \({quantize}(?:, flat)?\)", help_text)
    assert said and float(said[1]) == pytest.approx((sizes["index.faiss"] + sizes["vectors.npy"]) / plain, rel=0.02)


def test_prompts_of_lines_and_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "run" / "best"), device="cpu")
    encoder.prompts = {"query": "der Hund ", "passage": "das rote Haus ", "title": "ein "}
    encoder.save(tmp_path / "prompted")
    lines, queries = [pair[1] for pair in PAIRS], [PAIRS[4][0], PAIRS[8][0]]
    for name, text, document, asked in (
        (None, "das rote Haus ", "usual", "der Hund "),
        ("title", "ein ", "own", "ein "),
    ):
        named = ["--prompt-name", name] if name else []
        where, more = str(tmp_path / document), ["--device", "cpu"]
        given = ["--path", str(tmp_path / "prompted"), "--input", "lines.en", "--output", where]
        assert main(["build", *given, *named, *more]) == 0
        assert main(["add", where, "--input", "lines.en", *more]) == 0
        vectors = encoder.encode(lines, prompt=text)
        np.testing.assert_allclose(np.load(f"{where}/vectors.npy"), np.concatenate((vectors, vectors)), atol=1e-3)
        capsys.readouterr()
        assert main(["query", where, *queries, "--json", "-k", "1", *named, *more]) == 0
        for query, answer in zip(queries, map(json.loads, capsys.readouterr().out.splitlines()), strict=True):
            cosines = vectors @ encoder.encode(query, prompt=asked)
            assert answer["hits"][0]["score"] == pytest.approx(cosines.max(), abs=1e-3)
    assert main(["query", where, "x", "--prompt-name", "absent", *more]) == 2
    assert "there is no prompt 'absent'; known: query, passage, title\n" in capsys.readouterr().err


REFUSED = {
    "build --path best --input lines.en --output index": "index: exists and is not empty; remove it, or choose another",
    "build --path best --input lines.en --output new": "a tower for each side and no language was named; known: de, en",
    "build --path best --input absent --output new": "absent: no such file; check the name",
    "build --path best --input lines.en --output lines.en": "lines.en: --output is the same file as --input",
    "build --path best --input lines.en --output -": "-: an index is a directory; name a directory",
    "build --path best --input lines.en --output /dev/null": "/dev/null: an index is a directory; name a directory",
    "build --path best --input lines.en --output best --lang en": "best: exists and is not empty",
    "build --path best --input lines.en --output lines.de/x --lang en": "lines.de: no such folder; make it first",
    "build --path best --input lines.en --output absent/x --lang en": "absent: no such folder; make it first",
    "build --path best --input lines.en --output new --batch-tokens 0": "--batch-tokens 0; give at least 1",
    "build --path best --input lines.en --output new --quantize pq": "argument --quantize: invalid choice: 'pq'",
    "build --path index --input lines.en --output new": "index: ",
    "add best --input lines.de --lang de": "best: not an index (no valid manifest.json)",
    "add absent --input lines.de --lang de": "absent: no such index; build it with xrep-search build",
    "add index --input lines.de": "a tower for each side and no language was named; known: de, en",
    "add index --input lines.de --lang fr": "no tower for the language 'fr'; known: de, en",
    "add index --input blank.txt --lang de": "blank.txt: no sentence in it; give a text with sentences",
    "add index --input latin.txt --lang de": "latin.txt:1: invalid UTF-8",
    "query index x -k 0 --lang en": "-k 0; give at least 1",
    "query index x --probes 0 --lang en": "--probes 0; give at least 1",
    "query index x": "a tower for each side and no language was named; known: de, en",
    "query lines.en x --lang en": "lines.en: not an index (no valid manifest.json)",
    "query index x --lang en --path other": "index: its vectors were made by another encoder; give --path, or build",
    "query index x --lang en --path absent": "absent: no such",
    "query index -k 1 --bogus x --lang en": "unrecognized arguments: --bogus",
    "": "the following arguments are required: COMMAND",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "blank.txt").write_text("\n \n")
    (place / "latin.txt").write_bytes(b"br\xfccke\n")
    if not (place / "other").exists():
        write_encoder(place / "other", towers="separate", seed=5)
    before = contents(place)
    assert main([*line.split(), *(["--device", "cpu"] if line else [])]) == 2
    printed = capsys.readouterr()
    assert REFUSED[line] in printed.err and printed.err.count("\n") == 1 and printed.out == ""
    assert contents(place) == before
    assert main(["query", "index", " ", "--device", "cpu"]) == 2
    assert "an empty query; give a sentence" in capsys.readouterr().err
