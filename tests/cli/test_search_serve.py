"""``xrep-search serve`` as a process of its own, asked over HTTP on loopback."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import sentence_pairs, write_lines
from tests.support.once import made_once
from xrep import SearchIndex
from xrep.errors import UserError

pytest.importorskip("fastapi", reason="the extra serve is not installed")
PAIRS = sentence_pairs(60)
PROGRAM = [sys.executable, "-m", "xrep_cli.search", "serve"]


@pytest.fixture(scope="module")
def folder(shared_encoder: Path) -> Path:
    def make(folder: Path) -> None:
        lines = write_lines(folder / "lines.en", [english for _, english in PAIRS])
        mined = [[f"1.{9 - n}", german, english] for n, (german, english) in enumerate(PAIRS[:9])]
        mined[8].insert(1, "0.5")  # as xrep-score writes the cosine
        mined.reverse()  # which keeps the order of the text
        write_lines(folder / "mined.tsv", ["\t".join(columns) for columns in mined])
        write_lines(folder / "wrong.tsv", ["1.2\tein Haus\ta house", "ein Haus\ta house"])
        SearchIndex.build(shared_encoder, lines, folder / "index", device="cpu")

    return made_once("serve", make)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    command = [*PROGRAM, "index", "--pairs", "mined.tsv", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    try:
        yield re.findall(r"http://127\.0\.0\.1:\d+", line)[0]
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert "Traceback" not in rest, rest
        process.wait(30)


def ask(address: str, path: str, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_answers_are_those_of_the_index(folder: Path, address: str) -> None:
    index = SearchIndex.load(folder / "index", device="cpu")
    query = PAIRS[7][0]
    status, content = ask(address, f"/search?k=3&query={urllib.parse.quote(query)}")
    answer, hits = json.loads(content), index.search(query, 3)
    assert status == 200 and answer["query"] == query
    assert [hit["row"] for hit in answer["hits"]] == [hit.row for hit in hits]
    assert answer["hits"][0] == pytest.approx(vars(hits[0]), abs=1e-5)
    near = json.loads(ask(address, "/similar?row=7&k=4")[1])
    stored = index.search(near["query"], 5)
    assert near["query"] == PAIRS[7][1] and 7 not in [hit["row"] for hit in near["hits"]]
    assert [hit["row"] for hit in near["hits"]] == [hit.row for hit in stored if hit.row != 7][:4]
    mined = json.loads(ask(address, "/pairs?start=8&count=5")[1])
    assert mined == {"total": 9, "pairs": [{"score": 1.1, "source": PAIRS[8][0], "target": PAIRS[8][1]}]}
    facts = json.loads(ask(address, "/index")[1])
    assert facts["sentences"] == len(index) and facts["pairs"] == 9 and not facts["needs_language"]
    described = json.loads(ask(address, "/openapi.json")[1])["paths"]
    assert {*described} == {"/search", "/similar", "/pairs", "/index"}
    assert '<input type="search"' in ask(address, "/")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/search", 422, "query: field required; /openapi.json describes"),
        ("/search?query=%20", 400, "an empty query; give a sentence"),
        ("/search?query=a&k=0", 422, "k: input should be greater than or equal to 1"),
        ("/search?query=a&k=many", 422, "k: input should be a valid integer"),
        ("/search?query=a&lang=de-en", 400, "lang de-en: a pair, where each language is named alone"),
        ("/similar?row=60", 400, "row 60; rows are numbers from 0 to 59"),
        ("/similar?row=-1", 400, "row -1; rows are numbers from 0 to 59"),
        ("/../../etc/passwd", 404, "Not Found; there are /, /search, /similar, /pairs, /index"),
        ("/index/manifest.json", 404, "Not Found; there are"),
    ],
)
def test_a_wrong_request_is_told_what_helps(address: str, path: str, status: int, message: str) -> None:
    code, content = ask(address, path)
    assert code == status and len(content.splitlines()) == 1
    assert [*json.loads(content)] == ["error"] and message in json.loads(content)["error"]


@pytest.mark.slow
def test_pages_of_other_sites_cannot_ask(address: str) -> None:
    code, content = ask(address, "/index", Host="evil.example")
    assert code == 400 and "asked as evil.example, but this answers as localhost" in json.loads(content)["error"]
    assert ask(address, "/index", Host="[::1]:8000")[0] == 200


@pytest.mark.slow
def test_mistakes_in_the_command_are_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for given, message in (
            (["--port", str(taken.getsockname()[1])], "Address already in use; choose another --port"),
            (["--pairs", "wrong.tsv"], "wrong.tsv:2: a line is not score<TAB>source<TAB>target"),
        ):
            command = [*PROGRAM, "index", "--device", "cpu", *given]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
            assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_rows_that_are_not_there(folder: Path) -> None:
    index = SearchIndex.load(folder / "index", device="cpu")
    for row in (-1, 60):
        with pytest.raises(UserError, match=f"row` {row}; rows are numbers from 0 to 59"):
            index.similar(row)
