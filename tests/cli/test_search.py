"""``xrep-search`` as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import write_lines
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.once import made_once
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli.search import main

PAIRS = sentence_pairs(60)


@pytest.fixture(scope="module")
def place(separate_encoder: Path) -> Path:
    """A folder with texts in two languages and an index of the English one by an encoder of two towers."""

    def make(folder: Path) -> None:
        for side, language in enumerate(("de", "en")):
            write_lines(folder / f"lines.{language}", [pair[side] for pair in PAIRS])
        given = f"--path {separate_encoder} --input lines.en --lang en --output index --device cpu"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert main(["build", *given.split()]) == 0

    return made_once("search", make)


@pytest.fixture
def search(place: Path, cli: Commands) -> Any:
    """The command on a CPU, in a folder with the texts and the index."""
    for path in place.iterdir():
        (cli.folder / path.name).symlink_to(path)
    return lambda verb, *words, **given: cli("search", verb, "--device", "cpu", *words, **given)


def test_a_query_prints_the_nearest_lines(search: Any) -> None:
    query = PAIRS[7][1]
    rows = [line.split("\t") for line in search("query", "index", query, *"-k 3 --lang en".split()).out.splitlines()]
    assert len(rows) == 3 and rows[0] == ["1", "1.0000", "lines.en:8", query]
    (line,) = search("query", "index", PAIRS[0][0], *"-k 2 --lang de --json".split()).out.splitlines()
    answer = json.loads(line)
    assert answer["query"] == PAIRS[0][0] and len(answer["hits"]) == 2
    assert set(answer["hits"][0]) == {"score", "row", "file", "line", "text"}


@pytest.mark.parametrize(
    "line", ["index -k 1 A B", "-k 1 index A B", "index A -k 1 B", "index A B -k 1", "index -k 1 -- A B"]
)
def test_queries_stand_before_or_behind_options(line: str, search: Any) -> None:
    words = [{"A": PAIRS[3][1], "B": PAIRS[7][1]}.get(word, word) for word in line.split()]
    rows = search("query", "--lang", "en", *words).out.splitlines()
    assert [row.split("\t")[3] for row in rows] == [PAIRS[3][1], PAIRS[7][1]]


def test_queries_from_standard_input(search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, real = write_lines(tmp_path / "queries.txt", [PAIRS[3][1], "", PAIRS[5][1]]), open
    monkeypatch.setattr(
        "xrep.text.lines.open", lambda file, *more, **named: real(queries, *more, **named), raising=False
    )
    done = search("query", "index", *"-k 1 --lang en".split(), stdin=queries.read_bytes())
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [("1", PAIRS[3][1]), ("3", PAIRS[5][1])], done


def test_lines_are_added_and_the_summary_says_so(search: Any, separate_encoder: Path) -> None:
    line = "--input lines.en --output own --quantize int8 --lang en --path"
    printed = search("build", *line.split(), separate_encoder)
    assert printed.out.startswith("60 sentences of 60 lines, exact search, int8, ") and printed.err == ""
    assert "; recall@10 1.000 (" in printed.out and printed.out.endswith(": own\n")
    told = json.loads(search("add", "own", *"--input lines.de --lang de --json".split()).out)
    assert told["rows"] == 120 and told["recall"]["k"] == 10 and told["path"] == "own"
    assert [source["name"] for source in told["sources"]] == ["lines.en", "lines.de"]
    found = search("query", "own", PAIRS[9][0], *"-k 1 --lang de".split())
    assert found.out == f"1\t1.0000\tlines.de:10\t{PAIRS[9][0]}\n"


@pytest.mark.slow
def test_the_size_is_that_of_all_files(search: Any, tmp_path: Path) -> None:
    """Beside the text and its places, as the help says; and with them, as the line after building says."""
    encoder = write_encoder(tmp_path / "wide" / "best", size=256)
    write_lines(tmp_path / "lines.txt", [f"{one} {number}" for number, (one, _) in enumerate(sentence_pairs(600))])
    plain, help_text = 4 * 256 * 600, " ".join(search("build", "--help").out.split())
    for quantize in ("none", "int8", "binary"):
        line = f"--path {encoder} --input lines.txt --lang de --output {quantize} --quantize {quantize}"
        printed = search("build", *line.split()).out
        sizes = {file.name: file.stat().st_size for file in (tmp_path / quantize).iterdir()}
        found = re.search(r", ([\d.]+) times the bytes of float32 vectors \(index\.faiss ([\d.]+)\)", printed)
        assert found and float(found[1]) == pytest.approx(sum(sizes.values()) / plain, abs=0.006)
        assert float(found[2]) == pytest.approx(sizes["index.faiss"] / plain, abs=0.006)
        said = re.search(rf"([\d.]+) \({quantize}(?:, flat)?\)", help_text)
        assert said and float(said[1]) == pytest.approx((sizes["index.faiss"] + sizes["vectors.npy"]) / plain, rel=0.02)


@pytest.mark.slow
def test_prompts_of_lines_and_queries(search: Any, shared_encoder: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(shared_encoder, device="cpu")
    encoder.prompts = {"query": "der Hund ", "passage": "das rote Haus ", "title": "ein "}
    encoder.save(tmp_path / "prompted")
    lines, queries = [pair[1] for pair in PAIRS], [PAIRS[4][0], PAIRS[8][0]]
    for where, named, text, asked in (
        ("usual", [], "das rote Haus ", "der Hund "),
        ("own", ["--prompt-name", "title"], "ein ", "ein "),
    ):
        assert search("build", *f"--path prompted --input lines.en --output {where}".split(), *named).code == 0
        assert search("add", where, "--input", "lines.en").code == 0
        vectors = encoder.encode(lines, prompt=text)
        written = np.load(tmp_path / where / "vectors.npy")
        np.testing.assert_allclose(written, np.concatenate((vectors, vectors)), atol=1e-3)
        answers = search("query", where, *queries, "--json", "-k", "1", *named).out.splitlines()
        for query, answer in zip(queries, map(json.loads, answers), strict=True):
            cosines = vectors @ encoder.encode(query, prompt=asked)
            assert answer["hits"][0]["score"] == pytest.approx(cosines.max(), abs=1e-3)
