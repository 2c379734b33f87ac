"""``xrep-search`` as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
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
        write_lines(folder / "few.en", [pair[1] for pair in PAIRS[:40]])
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
    (line,) = search("query", "index", *"-k 2 --lang de --json".split(), PAIRS[0][0]).out.splitlines()
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

    def opened(file: Any, *arguments: Any, **options: Any) -> object:
        return real(queries if file == "/dev/stdin" else file, *arguments, **options)

    monkeypatch.setattr("xrep.store.contents.open", opened, raising=False)
    done = search("query", "index", *"-k 1 --lang en".split(), stdin=queries.read_bytes())
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [("1", PAIRS[3][1]), ("3", PAIRS[5][1])], done
    queries.write_text("")
    done = search("query", "index", "--lang", "en", stdin=b"")
    assert done.code == 2 and "standard input: no query; give a sentence on each line" in done.err


def test_lines_are_added_and_the_summary_says_so(search: Any, separate_encoder: Path) -> None:
    printed = search("build", *"--input lines.en --output own --lang en --path".split(), separate_encoder)
    assert re.fullmatch(r"60 sentences of 60 lines, exact search, 0\.0 MB: own\n", printed.out) and printed.err == ""
    told = json.loads(search("add", "own", *"--input lines.de --lang de --json".split()).out)
    assert told["rows"] == 120 and told["path"] == "own" and told["bytes"] > 120 * 2 * told["size"]
    assert [part["source"] for part in told["parts"]] == ["lines.en", "lines.de"]
    assert "160 lines in 3 parts" in search("add", "own", "--input", "few.en").out  # in the language of the first text
    again = search("add", "own", "--input", "few.en")
    assert (
        "160 lines in 3 parts" in again.out and again.err == "xrep-search: the sentences of few.en are there already\n"
    )
    found = search("query", "own", PAIRS[9][0], *"-k 1 --lang de".split())
    assert found.out == f"1\t1.0000\tlines.de:10\t{PAIRS[9][0]}\n"


def test_an_index_is_checked(search: Any, cli: Commands, separate_encoder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("xrep.inference.search_index.PROBES", 1)
    search("build", *"--input lines.en --output own --lang en --index IVF30,Flat --path".split(), separate_encoder)
    recall = json.loads(cli("search", "check", "own", "--json").out)["recall"]
    assert 0 < recall < 0.9 and cli("search", "check", "own").out == (
        f"all 6 files (0.0 MB) are as they were written; recall@10 of 60 queries {recall:.3f}: own\n"
    )


def test_an_empty_query_is_refused(search: Any) -> None:
    done = search("query", "index", " ")
    assert done.code == 2 and "an empty query" in done.err and done.err.count("\n") == 1


def test_columns_have_names_on_a_terminal(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "query", "index", PAIRS[7][1], "--lang", "en"
    assert not search(*given).out.startswith("query\t")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert search(*given).out.startswith("query\tcosine\tplace\ttext\n1\t1.0000\tlines.en:8\t")


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
        assert search("add", where, *"--input lines.en --lang en".split()).code == 0
        vectors, parts = encoder.encode(lines, prompt=text), [*(tmp_path / where).glob("part-*")]
        assert len(parts) == 2
        for part in parts:
            np.testing.assert_allclose(np.load(part / "vectors.npy"), vectors, atol=1e-3)
        answers = search("query", where, *queries, "--json", "-k", "1", *named).out.splitlines()
        for query, answer in zip(queries, map(json.loads, answers), strict=True):
            cosines = vectors @ encoder.encode(query, prompt=asked)
            assert answer["hits"][0]["score"] == pytest.approx(cosines.max(), abs=1e-3)
