"""Readers of downloaded text: whatever a file holds, a reader returns a value or raises a UserError, and soon.

``scripts/test --nightly tests/test_fuzz.py --fuzz-minutes 5`` reads other files for five minutes a reader.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.runs import contents
from xrep.errors import UserError
from xrep.evaluation import bucc, sts
from xrep.evaluation.senteval.evaluate import find_sets, read_set
from xrep.text.examples import read_pairs, read_text
from xrep.text.exclusion import load_exclusion
from xrep.text.find import TextFile, parse_bitext
from xrep.understanding.formats import read_questions, read_tagged
from xrep.understanding.labels import read_labelled

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
SECONDS = 4.0
"""Processor time for a file; a current processor needs less than a second."""
HOSTILE = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t\t", b'"', b"{", b"[" * 2000, b"(" * 300, b"NaN", b"-1",
    b"1e999", b"9" * 400, b"null", b"true", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"..", b"&a;", b"<!ENTITY a '&b;'>", b"0",
    b"\\u0000", b"\\ud800", b"[]", b"{}", b"''", b"<", b"]]>",
)  # fmt: skip
"""Pieces that a damaged file gets: bytes that are not UTF-8, deep nesting, numbers that do not fit, references."""


@st.composite
def files_like(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """Draw one of the valid files with up to six damages: a span removed, repeated, moved or replaced."""
    content = draw(st.sampled_from([*valid, *valid, *valid, b""]))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 1, 2, 4, 8, 64, 100_000])))
        piece = draw(st.one_of(st.just(b""), st.sampled_from(HOSTILE), st.binary(max_size=8)))
        piece = content[start:end] * 2 if draw(st.integers(0, 5)) == 0 else piece
        content = content[:start] + piece + content[end:]
    return content


@dataclass(frozen=True)
class Reader:
    """A function that reads a downloaded file completely, what such files hold, and the files beside it."""

    file: str
    valid: tuple[bytes, ...]
    read: Callable[[Path], object]
    beside: dict[str, bytes]


def text(path: Path) -> None:
    list(read_text(path, "de"))
    list(read_pairs(parse_bitext(f"de-en={path}")))
    load_exclusion([path])


def senteval(path: Path) -> None:
    read_set("TREC", find_sets(path.parent)["TREC"][0], path.parent, "en")


def annotated(read: Callable[..., object]) -> Callable[[Path], object]:
    return lambda path: list(read(TextFile("de", path)))  # type: ignore[call-overload]


UNITS = "<tu><tuv xml:lang='de'><seg>Der <b>Zug</b>.</seg></tuv><tuv xml:lang='en'><seg>The train.</seg></tuv></tu>" * 2
TMX = f"<?xml version='1.0'?><tmx version='1.4'><header srclang='en'/><body>{UNITS}</body></tmx>"
SEGMENT = "<source>The train.</source><target>Der Zug &amp; so.</target>"
XLIFF1 = (
    "<xliff version='1.2'><file source-language='en' target-language='de'><body>"
    f"<trans-unit id='1'>{SEGMENT}</trans-unit></body></file></xliff>"
).encode()
XLIFF2 = (
    "<xliff xmlns='urn:oasis:names:tc:xliff:document:2.0' version='2.0' srcLang='en' trgLang='de'><file id='f'>"
    f"<unit id='1'><segment>{SEGMENT}</segment></unit></file></xliff>"
).encode()
CSV = b'id,en,de\n1,"The train, now.","Der ""Zug""."\n2,Hello.,Hallo.\n'
ROW = b'{"de": "Der Zug.", "en": "The train.", "score": 1}'
TREC = {"train_5500.label": b"NUM:dist How far is it ?\nHUM:ind Who was she ?\n" * 12}
STSB = b"news\tMSR\t2012\t1\t4.5\tA dog runs.\tA dog is running.\nnews\tMSR\t2012\t2\t0\tA cat.\tStocks fell.\n"
REVIEWS = b"<?xml version='1.0'?><items><item><rating>4.0</rating><text>Sch\xc3\xb6n &amp; gut</text></item></items>"
TAGS = b"de:Kiel\tB-LOC\nde:ist\tO\n\nde:da\tO\n"
CONLLU = b"# x\n1\tIt\tit\tPRON\t_\t_\t0\troot\t_\t_\n2-3\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
SQUAD = (
    b'{"data": [{"paragraphs": [{"context": "He is in Kiel.", "qas": [{"id": "1", "question": "Where?", "answers": '
    b'[{"text": "Kiel", "answer_start": 9}]}]}]}]}'
)
BUCC = {"de-en.dev.de": b"d1\tHaus\nd2\tHof\n", "de-en.dev.en": b"e1\thouse\ne2\tyard\n"}
READERS = {
    "TMX": Reader("a.tmx", (TMX.encode(), TMX.encode("utf-16")), text, {}),
    "XLIFF": Reader("a.xlf", (XLIFF1, XLIFF2), text, {}),
    "CSV": Reader("a.csv", (CSV, CSV.replace(b",", b";")), text, {}),
    "JSON lines": Reader("a.jsonl", (ROW + b"\n", b'{"translation": ' + ROW + b"}\n"), text, {}),
    "SentEval": Reader("TREC_10.label", (b"NUM:dist How far is it ?\nHUM:ind Who was she ?\n" * 2,), senteval, TREC),
    "CoNLL": Reader("train.txt", (TAGS,), annotated(read_tagged), {}),
    "CoNLL-U": Reader("train.conllu", (CONLLU,), annotated(read_tagged), {}),
    "STS": Reader("sts-test.csv", (STSB,), sts.read_set, {}),
    "XML": Reader("train.review", (REVIEWS,), annotated(read_labelled), {}),
    "SQuAD": Reader("train.json", (SQUAD,), annotated(read_questions), {}),
    "BUCC": Reader("de-en.dev.gold", (b"d1\te1\nd2\te2\n",), bucc.read_split, BUCC),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "inputs", [pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)]
)
def test_any_content(name, inputs, tmp_path, request, record_property):
    reader, counts = READERS[name], {"read": 0, "refused": 0}
    path = tmp_path / "fuzz" / reader.file
    path.parent.mkdir()
    for file, content in reader.beside.items():
        (path.parent / file).write_bytes(content)
    path.write_bytes(reader.valid[0])
    reader.read(path)  # what is valid can be read
    before = contents(tmp_path)

    def check(content: bytes) -> None:
        path.write_bytes(content)
        start = time.process_time()
        try:
            reader.read(path)
            counts["read"] += 1
        except UserError as error:
            assert str(error).strip(), "the message is empty"
            counts["refused"] += 1
        assert time.process_time() - start < SECONDS, "the reader took too long"

    chosen = settings(max_examples=inputs, suppress_health_check=SLOW, phases=[Phase.generate])
    chosen(given(files_like(reader.valid))(check))()
    end = time.monotonic() + 60 * float(request.config.getoption("--fuzz-minutes") or 0) * (inputs > 20)
    while time.monotonic() < end:
        settings(chosen, derandomize=False)(given(files_like(reader.valid))(check))()
    path.write_bytes(reader.valid[0])
    assert contents(tmp_path) == before, "the reader wrote something"
    assert min(counts.values()) > 0
    record_property("fuzz", f"{name}: {counts['read']:,} read, {counts['refused']:,} refused")
