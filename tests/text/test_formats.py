"""Text in every format: what is written in it is what is read, compressed or in an archive, alone or in a folder."""

import bz2
import gzip
import io
import json
import lzma
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.examples import read_pairs, read_sentences, read_text
from xrep.text.exclusion import load_exclusion
from xrep.text.find import TextFile, discover_bitext, find_text, parse_bitext
from xrep.text.tmx import MEMORIES, write_memory

Pairs = list[tuple[str, str]]
PAIRS = [("Das Haus ist rot.", "The house is red."), ("Guten Tag, Welt", "Good day; world"), ("Grün", "Green")]
TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" datatype="plaintext"/><body>
{units}
</body></tmx>
"""
XLIFF1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="de-DE" target-language="en" original="a"><body>{units}</body></file></xliff>
"""
XLIFF2 = """<xliff version="2.0" srcLang="de" trgLang="en-GB" xmlns="urn:oasis:names:tc:xliff:document:2.0">
<file id="1">{units}</file></xliff>
"""


def tmx(pairs: Pairs, encoding: str = "utf-8", quote: Callable[[str], str] = escape) -> bytes:
    unit = '<tu><tuv xml:lang="EN-us"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>\n'
    units = "".join(unit.format(quote(en), quote(de)) for de, en in pairs)
    return TMX.format(encoding=encoding, units=units).encode(encoding)


def xliff(template: str, pairs: Pairs, quote: Callable[[str], str] = escape) -> bytes:
    unit = "<segment><source>{}</source><target>{}</target></segment>"
    if template is XLIFF1:
        other = "<alt-trans><target>x</target></alt-trans>"
        unit = f"<trans-unit id='1'><source>{{}}</source><target>{{}}</target>{other}</trans-unit>"
    return template.format(units="\n".join(unit.format(*map(quote, pair)) for pair in pairs)).encode()


def csv_of(pairs: Pairs, separator: str = ",") -> bytes:
    rows = [("id", "en", "de"), *((f"{n}", en, de) for n, (de, en) in enumerate(pairs))]
    quoted = ([text.replace('"', '""') for text in row] for row in rows)
    return "".join(separator.join(f'"{text}"' for text in row) + "\n" for row in quoted).encode()


def jsonl(pairs: Pairs, nested: bool = False) -> bytes:
    rows = [{"de": de, "en": en, "score": 1} for de, en in pairs]
    return "".join(json.dumps({"translation": row} if nested else row) + "\n" for row in rows).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def side(pairs: Pairs, number: int) -> bytes:
    return "".join(f"{pair[number]}\n" for pair in pairs).encode()


def opus(pairs: Pairs) -> bytes:
    books = {f"Books.de-en.{code}": side(pairs, number) for number, code in enumerate(("de", "en"))}
    return zipped({**books, "README": b"about", "LICENSE": b"free"})


def parquet(pairs: Pairs, nested: bool = False) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet as files

    columns = {"de": [de for de, _ in pairs], "n": list(range(len(pairs))), "en": [en for _, en in pairs]}
    both = {"translation": [{"de": de, "en": en} for de, en in pairs]}
    table = arrow.table(both if nested else columns)
    files.write_table(table, file := io.BytesIO(), row_group_size=5_000)
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard", reason="the extra zstd is not installed").compress(content)


FORMATS: dict[str, Callable[[Pairs], bytes]] = {
    "a.tmx": tmx,
    "utf16.tmx": lambda pairs: tmx(pairs, "utf-16"),
    "a.xlf": lambda pairs: xliff(XLIFF1, pairs),
    "a.xliff": lambda pairs: xliff(XLIFF2, pairs),
    "a.csv": csv_of,
    "semicolons.csv": lambda pairs: csv_of(pairs, ";"),
    "a.jsonl": jsonl,
    "nested.jsonl": lambda pairs: jsonl(pairs, nested=True),
    "a.parquet": parquet,
    "nested.parquet": lambda pairs: parquet(pairs, nested=True),
    "parquet.zip": lambda pairs: zipped({"de-en.parquet": parquet(pairs)}),
    "a.tmx.gz": lambda pairs: gzip.compress(tmx(pairs)),
    "a.jsonl.bz2": lambda pairs: bz2.compress(jsonl(pairs)),
    "a.csv.xz": lambda pairs: lzma.compress(csv_of(pairs)),
    "a.jsonl.zst": lambda pairs: zstd(jsonl(pairs)),
    "de-en.txt.zip": opus,
    "wmt.zip": lambda pairs: zipped({"dev/newstest.de": side(pairs, 0), "dev/newstest.en": side(pairs, 1)}),
    "tmx.zip": lambda pairs: zipped({"de-en.tmx": tmx(pairs), "README": b""}),
    "tsv.zip": lambda pairs: zipped({"deu.tsv": "".join(f"{de}\t{en}\n" for de, en in pairs).encode()}),
    "gz.zip": lambda pairs: zipped({"a.de.gz": gzip.compress(side(pairs, 0)), "a.en": side(pairs, 1)}),
}
ROUND = [name for name in FORMATS if name != "tsv.zip"]
"""Formats that name their languages."""
SENTENCE = st.lists(st.text("aZ\u00e4\u00df\u4e2d\U0001f600,;\"'<>&|{}\\:\u2028", min_size=1, max_size=9), min_size=1)


@pytest.mark.parametrize("name", FORMATS)
def test_pairs_and_texts_of_every_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMATS[name](PAIRS))
    for languages in ("de-en", "deu-eng", "en-de"):
        found = [row[1:] for row in read_pairs(parse_bitext(f"{languages}={tmp_path / name}"))]
        assert found == PAIRS
    for number, language in enumerate(("de", "en") if name in ROUND else ()):
        assert [text for _, text in read_text(tmp_path / name, language)] == [pair[number] for pair in PAIRS]
    excluded = load_exclusion([tmp_path])
    assert excluded.contains(sentence_hashes([text for pair in PAIRS for text in pair])).all()


@pytest.mark.slow
@settings(max_examples=6)
@given(pairs=st.lists(st.tuples(SENTENCE.map(" ".join), SENTENCE.map(" ".join)), min_size=1, max_size=4))
def test_what_was_written_is_read(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("round")
    for name in ROUND:
        (folder / name).write_bytes(FORMATS[name](pairs))
        expected = [tuple(" ".join(text.split()) for text in pair) for pair in pairs]
        found = [row[1:] for row in read_pairs(parse_bitext(f"de-en={folder / name}"))]
        assert [tuple(" ".join(text.split()) for text in pair) for pair in found] == expected, name
        assert found == pairs or name.endswith((".tmx", ".xlf", ".xliff", ".gz", "tmx.zip")), name


def test_folders_of_training_text(tmp_path: Path) -> None:
    for name, write in FORMATS.items():
        stem, _, ending = name.partition(".")
        (tmp_path / f"{stem}.de-en.{ending}").write_bytes(write(PAIRS))
    (tmp_path / "valid.de-en.tmx").write_bytes(tmx(PAIRS))
    found = discover_bitext(tmp_path)
    assert len(found["train"]) == len(FORMATS) and len(found["valid"]) == 1
    for bitext in found["train"]:
        assert [row[1:] for row in read_pairs(bitext)] == PAIRS, bitext
    mono = {"news.de.tmx": tmx(PAIRS), "news.en.jsonl.gz": gzip.compress(jsonl(PAIRS)),
            "de.txt.bz2": bz2.compress(side(PAIRS, 0)), "valid.en.zip": zipped({"a.en": side(PAIRS, 1)})}  # fmt: skip
    (tmp_path / "mono").mkdir()
    for name, content in mono.items():
        (tmp_path / "mono" / name).write_bytes(content)
    splits = find_text(tmp_path / "mono")
    assert {split: sorted(file.language for file in files) for split, files in splits.items()} == {
        "train": ["de", "de", "en"], "valid": ["en"]
    }  # fmt: skip
    for file in [file for files in splits.values() for file in files] + [TextFile("en", tmp_path / "a.de-en.tmx")]:
        assert [text for text, _ in read_sentences(file)] == [pair[file.language == "en"] for pair in PAIRS]


def test_without_the_package_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, file, extra in (("zstandard", "a.zst", "zstd"), ("pyarrow", "a.parquet", "parquet")):
        monkeypatch.setitem(sys.modules, package, None)
        (tmp_path / file).write_bytes(b"\x28\xb5\x2f\xfd....")
        with pytest.raises(UserError, match=rf"{file}: .*; pip install 'xrep\[{extra}\]'"):
            list(read_text(tmp_path / file))


def test_fields_are_named_or_found(tmp_path: Path) -> None:
    def text(name: str, content: bytes, lang: str | None = None) -> list[str]:
        (tmp_path / name.split(":")[0]).write_bytes(content)
        return [line for _, line in read_text(f"{tmp_path}/{name}", lang)]

    rows = b'{"text": "a", "title": "b"}\n\n{"text": "c", "title": "d"}\n'
    assert text("a.jsonl", rows) == ["a", "c"] and text("a.jsonl:title", rows) == ["b", "d"]
    assert text("one.csv", b'quote\n"x, y"\n"two\nlines"\n') == ["x, y", "two\nlines"]
    assert text("a.csv", csv_of(PAIRS), "de") == text("a.csv:de", csv_of(PAIRS)) == [de for de, _ in PAIRS]
    assert text("a.parquet:en", parquet(PAIRS)) == [en for _, en in PAIRS]
    (tmp_path / "p.jsonl").write_bytes(b'{"src": "x", "trg": "y"}\n')
    assert list(read_pairs(parse_bitext(f"en-de={tmp_path}/p.jsonl:src,trg"))) == [(1, "y", "x")]
    assert text("null.jsonl", b'{"deu": "a"}\n{"deu": null}\n{"text": null}\n', "de") == ["a", "", ""]
    (tmp_path / "p.jsonl").write_bytes(b'{"translation": {"de": "x", "en": "y"}}\n{"translation": null}\n')
    for fields in ("", ":translation.de,translation.en"):
        assert list(read_pairs(parse_bitext(f"de-en={tmp_path}/p.jsonl{fields}"))) == [(1, "x", "y"), (2, "", "")]
    assert text("long.csv", b"text\n" + b"a b " * 50_000) == ["a b " * 50_000]
    assert text("half.jsonl", b'{"text": "a \\ud800 b \\ud83d\\ude00"}\n') == ["a ? b \U0001f600"]
    (tmp_path / "in.zip").write_bytes(zipped({"x.txt": b"a\n", "y.txt": b"b\n"}))
    assert [line for _, line in read_text(tmp_path / "in.zip" / "y.txt")] == ["b"]
    (tmp_path / "a:b.txt").write_bytes(b"x\n")
    assert [line for _, line in read_text(tmp_path / "a:b.txt")] == ["x"]


def test_inline_markup_of_memories(tmp_path: Path) -> None:
    def read(name: str, content: bytes) -> list[tuple[int, str, str]]:
        (tmp_path / name).write_bytes(content)
        return list(read_pairs(parse_bitext(f"de-en={tmp_path / name}")))

    pairs = [("Ein <bpt i='1'>&lt;b></bpt>rotes<ept i='1'>&lt;/b></ept> <hi>Haus</hi><ph>{1}</ph>.", "A  red\n house.")]
    assert read("a.tmx", tmx(pairs, quote=str)) == [(1, "Ein rotes Haus.", "A red house.")]
    pairs = [("Ein <g id='1'>rotes</g> Haus<x id='2'/>.", "A <mrk mtype='x'>red</mrk> house.")]
    assert [row[1:] for row in read("a.xlf", xliff(XLIFF1, pairs, str))] == [("Ein rotes Haus.", "A red house.")]
    broken = [("rot<x id='1' ctype='lb'/>blau", "red<x id='1' ctype='x-a'/>dish<ph type='lb'/>blue")]
    assert [row[1:] for row in read("b.xlf", xliff(XLIFF1, broken, str))] == [("rot blau", "reddish blue")]
    untranslated = "<tu><tuv xml:lang='de'><seg>nur deutsch</seg></tuv></tu>"
    units = untranslated + untranslated.replace("</tu>", "<tuv xml:lang='en'><seg>x</seg></tuv></tu>")
    found = read("b.tmx", TMX.format(encoding="utf-8", units=units).encode())
    assert [row[1:] for row in found] == [("nur deutsch", ""), ("nur deutsch", "x")]


@pytest.mark.parametrize("ending", MEMORIES)
def test_a_written_memory_is_read(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    with path.open("w", encoding="utf-8") as file:
        units = [(1.25, "Gr\u00fc\u00dfe & <b>", "Greetings\x07 & <b>"), (1.0, "{0} {score}", "{}"), (1.0, *PAIRS[0])]
        assert write_memory(file, ("de", "en"), units, ending) == 3
    found = list(read_pairs(parse_bitext(f"de-en={path}")))
    assert found == [
        (1, "Gr\u00fc\u00dfe & <b>", "Greetings & <b>"),
        (2, "{0} {score}", "{}"),
        (3, *PAIRS[0]),
    ]
    score = '<prop type="x-score">1.250000</prop>' if ending == "tmx" else '<note from="xrep">score 1.250000</note>'
    assert score in path.read_text(encoding="utf-8")


OPUS = opus(PAIRS)
MALFORMED: dict[str, tuple[str, bytes, str]] = {
    "cut": ("a.tmx", tmx(PAIRS)[:-20], "a.tmx: not well-formed XML (unclosed token: line 6, column 88)"),
    "other XML": ("a.tmx", b"<html/>", "a.tmx: neither TMX nor XLIFF; give a translation memory"),
    "no object": ("a.jsonl", b'{"de": "x"}\n[1]\n', "a.jsonl:1: no text 'en' in it; there are de; name the"),
    "no JSON": ("a.jsonl", jsonl(PAIRS) + b"{\n", "a.jsonl:4: not JSON (Expecting property name enclosed"),
    "a short row": ("a.csv", csv_of(PAIRS) + b"1,2\n", "a.csv:5: 2 columns, but the first line names 3; quote texts"),
    "an open quote": ("a.csv", csv_of(PAIRS) + b'1,"2\n', "a.csv:5: not CSV (unexpected end of data); export it"),
    "no such column": ("a.csv", b"id,fr\n1,x\n", "a.csv:2: no text 'de' in it; there are id, fr"),
    "no parquet": ("a.parquet", b"PAR1 no PAR1", "a.parquet: not a file of Parquet, or a damaged one; fetch it again"),
    "half a zip": ("a.zip", OPUS[:-30], "a.zip: damaged or truncated; fetch it again"),
    "other files": ("a.zip", zipped({"a.fr": b"x\n", "b.txt": b"y\n"}), "a.zip: has not one file of de and en, but"),
    "two files": ("a.zip", zipped({"a.de": b"", "a.en": b"", "x.de": b"x\n"}), "name the file in it: "),
    "a damaged member": ("a.zip", OPUS.replace(OPUS[60:70], b"0123456789"),
                         "a.zip/Books.de-en.de: damaged or truncated; fetch it again"),
    "a short line": ("a.tsv", b"a\tb\nzwei\n", "a.tsv:2: 1 column where two columns are needed"),
    "UTF-16": ("a.tsv", "x\ty\n".encode("utf-16"), "convert the file, for example: iconv -f utf-16 -t utf-8"),
    "gzip": ("a.tsv", gzip.compress(b"x\ty\n" * 9000)[:-20], "damaged or truncated; fetch it again"),
    "zstd": ("a.zst", b"(\xb5/\xfd" + b"123456789", "damaged or truncated; fetch it again"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_one_line(tmp_path: Path, case: str) -> None:
    name, content, message = MALFORMED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        list(read_pairs(parse_bitext(f"de-en={tmp_path / name}")))
    assert "\n" not in str(caught.value) and caught.value.cure


def test_a_text_that_is_not_clear_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(PAIRS))
    (tmp_path / "a.zip").write_bytes(OPUS)
    for name, problem in (
        ("a.jsonl", "a.jsonl:1: which text is meant.* There are de, en; name it: FILE:FIELD"),
        ("a.jsonl:fr", "no text 'fr' in it; there are de, en"),
        ("a.zip/z.de", r"a\.zip/z\.de: no such file in the archive; check the name"),
        ("a.jsonl/z.de", r"a\.jsonl/z\.de: no such file; check the name"),
    ):
        with pytest.raises(UserError, match=problem):
            list(read_text(f"{tmp_path}/{name}"))


def test_a_memory_without_the_language_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tmx").write_bytes(tmx(PAIRS))
    assert len(list(read_text(tmp_path / "a.tmx", "en"))) == len(PAIRS)
    with pytest.raises(UserError, match="a.tmx: no text 'fr' in it; there are .*name another language, or the field"):
        list(read_text(tmp_path / "a.tmx", "fr"))
    for languages in ("fr-en", "de-fr"):
        with pytest.raises(UserError, match="a.tmx: no text 'fr' in it; there are .*name another language"):
            list(read_pairs(parse_bitext(f"{languages}={tmp_path}/a.tmx")))
