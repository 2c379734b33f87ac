"""Text in other formats than lines: compressed files, records, translation memories and archives of OPUS and WMT."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import environment
from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.exclusion import load_exclusion
from xrep.text.readers import TextFile, discover_bitext, find_text, parse_bitext, read_pairs, read_sentences, read_text

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


def tmx(pairs: list[tuple[str, str]] = PAIRS, encoding: str = "utf-8") -> bytes:
    units = (
        f'<tu><tuv xml:lang="EN-us"><seg>{en}</seg></tuv><tuv xml:lang="de"><seg>{de}</seg></tuv></tu>\n'
        for de, en in pairs
    )
    return TMX.format(encoding=encoding, units="".join(units)).encode(encoding)


def xliff(template: str, pairs: list[tuple[str, str]] = PAIRS) -> bytes:
    unit = "<segment><source>{}</source><target>{}</target></segment>"
    if template is XLIFF1:
        other = "<alt-trans><target>x</target></alt-trans>"
        unit = f"<trans-unit id='1'><source>{{}}</source><target>{{}}</target>{other}</trans-unit>"
    return template.format(units="\n".join(unit.format(*pair) for pair in pairs)).encode()


def csv_of(pairs: list[tuple[str, str]] = PAIRS, separator: str = ",") -> bytes:
    rows = [("id", "en", "de"), *((f"{n}", en, de) for n, (de, en) in enumerate(pairs))]
    return "".join(separator.join(f'"{text}"' for text in row) + "\n" for row in rows).encode()


def jsonl(pairs: list[tuple[str, str]] = PAIRS, nested: bool = False) -> bytes:
    rows = [{"de": de, "en": en, "score": 1} for de, en in pairs]
    return "".join(json.dumps({"translation": row} if nested else row) + "\n" for row in rows).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def side(number: int) -> bytes:
    return "".join(f"{pair[number]}\n" for pair in PAIRS).encode()


OPUS = {"Books.de-en.de": side(0), "Books.de-en.en": side(1), "README": b"about", "LICENSE": b"free"}
CONTENTS: dict[str, bytes] = {
    "a.tmx": tmx(),
    "utf16.tmx": tmx(encoding="utf-16"),
    "a.xlf": xliff(XLIFF1),
    "a.xliff": xliff(XLIFF2),
    "a.csv": csv_of(),
    "semicolons.csv": csv_of(separator=";"),
    "a.jsonl": jsonl(),
    "nested.jsonl": jsonl(nested=True),
    "a.tmx.gz": gzip.compress(tmx()),
    "a.jsonl.bz2": bz2.compress(jsonl()),
    "a.csv.xz": lzma.compress(csv_of()),
    "de-en.txt.zip": zipped(OPUS),
    "wmt.zip": zipped({"dev/newstest.de": side(0), "dev/newstest.en": side(1)}),
    "tmx.zip": zipped({"de-en.tmx": tmx(), "README": b""}),
    "tsv.zip": zipped({"deu.tsv": "".join(f"{de}\t{en}\n" for de, en in PAIRS).encode()}),
    "gz.zip": zipped({"a.de.gz": gzip.compress(side(0)), "a.en": side(1)}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_pairs_of_every_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENTS[name])
    for languages in ("de-en", "deu-eng", "en-de"):
        found = [(source, target) for _, source, target in read_pairs(parse_bitext(f"{languages}={tmp_path / name}"))]
        assert found == PAIRS


@pytest.mark.parametrize("name", CONTENTS)
def test_one_language_of_every_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENTS[name])
    if name == "tsv.zip":
        return  # columns have no languages
    for number, language in enumerate(("de", "en")):
        assert [text for _, text in read_text(tmp_path / name, language)] == [pair[number] for pair in PAIRS]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    table = arrow.table({"de": [de for de, _ in PAIRS], "n": [1, 2, 3], "en": [en for _, en in PAIRS]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_pairs(parse_bitext(f"de-en={tmp_path}/a.parquet"))) == [(n + 1, *p) for n, p in enumerate(PAIRS)]
    assert [text for _, text in read_text(f"{tmp_path}/a.parquet:en")] == [en for _, en in PAIRS]
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(UserError, match="b.parquet: not a file of Parquet, or a damaged one; fetch it again"):
        list(read_text(tmp_path / "b.parquet"))


def test_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    packed = zstandard.compress(side(0)) + zstandard.compress(b"x\n")
    (tmp_path / "a").write_bytes(packed)
    assert [text for _, text in read_text(tmp_path / "a")] == [*(de for de, _ in PAIRS), "x"]
    (tmp_path / "b.zst").write_bytes(zstandard.compress(side(0) * 1000)[:-9] + b"123456789")
    with pytest.raises(UserError, match=r"b\.zst:[0-9]+: damaged or truncated zstd file; fetch it again"):
        list(read_text(tmp_path / "b.zst"))


@pytest.mark.parametrize(
    ("package", "file", "extra"), [("zstandard", "a.zst", "zstd"), ("pyarrow", "a.parquet", "parquet")]
)
def test_without_the_package_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, file: str, extra: str
) -> None:
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
    assert text("a.csv", csv_of(), "de") == text("a.csv:de", csv_of()) == [de for de, _ in PAIRS]
    (tmp_path / "p.jsonl").write_bytes(b'{"src": "x", "trg": "y"}\n')
    assert list(read_pairs(parse_bitext(f"en-de={tmp_path}/p.jsonl:src,trg"))) == [(1, "y", "x")]
    (tmp_path / "in.zip").write_bytes(zipped({"x.txt": b"a\n", "y.txt": b"b\n"}))
    assert [line for _, line in read_text(tmp_path / "in.zip" / "y.txt")] == ["b"]
    (tmp_path / "a:b.txt").write_bytes(b"x\n")
    assert [line for _, line in read_text(tmp_path / "a:b.txt")] == ["x"]


def test_inline_markup_of_memories(tmp_path: Path) -> None:
    pairs = [("Ein <bpt i='1'>&lt;b></bpt>rotes<ept i='1'>&lt;/b></ept> <hi>Haus</hi><ph>{1}</ph>.", "A  red\n house.")]
    (tmp_path / "a.tmx").write_bytes(tmx(pairs))
    assert list(read_pairs(parse_bitext(f"de-en={tmp_path}/a.tmx"))) == [(4, "Ein rotes Haus.", "A red house.")]
    pairs = [("Ein <g id='1'>rotes</g> Haus<x id='2'/>.", "A <mrk mtype='x'>red</mrk> house.")]
    (tmp_path / "a.xlf").write_bytes(xliff(XLIFF1, pairs))
    assert [row[1:] for row in read_pairs(parse_bitext(f"de-en={tmp_path}/a.xlf"))] == [
        ("Ein rotes Haus.", "A red house.")
    ]
    untranslated = "<tu><tuv xml:lang='de'><seg>nur deutsch</seg></tuv></tu>"
    (tmp_path / "b.tmx").write_bytes(TMX.format(encoding="utf-8", units=untranslated).encode())
    assert [row[1:] for row in read_pairs(parse_bitext(f"de-en={tmp_path}/b.tmx"))] == [("nur deutsch", "")]


BOMB = (
    '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><tmx><tu><tuv xml:lang="de"><seg>&b;</seg></tuv></tu></tmx>'
)
OUTSIDE = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "/etc/passwd">]><tmx><tu><tuv xml:lang="de"><seg>&a;</seg></tuv></tu></tmx>'
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "entities": ("a.tmx", BOMB.encode(), "a.tmx:1: declares the entity 'a', which a translation memory does not need"),
    "a file outside": ("a.tmx", OUTSIDE.encode(), "a.tmx:1: declares the entity 'a'"),
    "cut": ("a.tmx", tmx()[:-20], "a.tmx:6: not well-formed XML (unclosed token); export it again"),
    "other XML": ("a.tmx", b"<html/>", "a.tmx: neither TMX nor XLIFF; give a translation memory"),
    "no XML": ("a.xlf", b"Haus\n", "a.xlf:1: not well-formed XML (syntax error)"),
    "an encoding": ("a.tmx", b"<?xml version='1.0' encoding='klingon'?><tmx/>", "a.tmx:1: "),
    "a huge tag": ("a.tmx", b"<tmx a='" + b"x" * 20_000_000 + b"'/>", "a.tmx:1: a tag of several megabytes"),
    "a long text": ("a.tmx", tmx([("x" * 1_000_001, "y")]), "a.tmx:4: a text of more than 1,000,000 characters"),
    "many words": ("a.jsonl", jsonl([("x " * 10_001, "y")]), "a.jsonl:1: a line of 10,001 words, too long"),
    "no object": ("a.jsonl", b'{"de": "x"}\n[1]\n', "a.jsonl:1: no text 'en' in it; there are de; name the"),
    "no JSON": ("a.jsonl", jsonl() + b"{\n", "a.jsonl:4: not an object of JSON; write one object on a line"),
    "half a character": ("a.jsonl", b'{"de": "\\ud800", "en": "x"}\n', "a.jsonl:1: half of a surrogate pair"),
    "a short row": ("a.csv", csv_of() + b"1,2\n", "a.csv:5: 2 columns, but the first line names 3; quote texts"),
    "an open quote": ("a.csv", csv_of() + b'1,"2\n', "a.csv:5: not CSV (unexpected end of data); export it again"),
    "no such column": ("a.csv", b"id,fr\n1,x\n", "a.csv:2: no text 'de' in it; there are id, fr"),
    "no zip": ("a.zip", b"PK no", "a.zip: damaged or truncated zip file; fetch it again"),
    "half a zip": ("a.zip", zipped(OPUS)[:-30], "a.zip: damaged or truncated zip file"),
    "other files": ("a.zip", zipped({"a.fr": b"x\n", "b.txt": b"y\n"}), "a.zip: has not one file of de and en, but"),
    "two files": ("a.zip", zipped({**OPUS, "x.de": b"x\n"}), "name the file in it: "),
    "a damaged member": (
        "a.zip",
        zipped(OPUS).replace(zipped(OPUS)[60:70], b"0123456789"),
        "a.zip/Books.de-en.de:1: damaged or truncated zip file; fetch it again",
    ),
    "bzip2": ("a.tsv", bz2.compress(b"x\ty\n" * 9000)[:-20], "damaged or truncated bzip2 file; fetch it again"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_one_line(tmp_path: Path, case: str) -> None:
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        list(read_pairs(parse_bitext(f"de-en={tmp_path / name}")))
    assert "\n" not in str(caught.value) and caught.value.cure


def test_a_text_that_is_not_clear_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    with pytest.raises(UserError, match="a.jsonl:1: which text is meant.* There are de, en; name it: FILE:FIELD"):
        list(read_text(tmp_path / "a.jsonl"))
    with pytest.raises(UserError, match="no text 'fr' in it; there are de, en"):
        list(read_text(f"{tmp_path}/a.jsonl:fr"))
    with pytest.raises(UserError, match=r"a\.zip/z\.de: no such file in the archive; check the name"):
        (tmp_path / "a.zip").write_bytes(zipped(OPUS))
        list(read_text(tmp_path / "a.zip" / "z.de"))
    with pytest.raises(UserError, match=r"a\.jsonl/z\.de: no such file; check the name"):
        list(read_text(tmp_path / "a.jsonl" / "z.de"))


def test_folders_of_training_text(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        stem, _, ending = name.partition(".")
        (tmp_path / f"{stem}.de-en.{ending}").write_bytes(content)
    (tmp_path / "valid.de-en.tmx").write_bytes(tmx())
    found = discover_bitext(tmp_path)
    assert len(found["train"]) == len(CONTENTS) and len(found["valid"]) == 1
    for bitext in found["train"]:
        assert [row[1:] for row in read_pairs(bitext)] == PAIRS, bitext
    (tmp_path / "mono").mkdir()
    for name in ("news.de.tmx", "news.en.jsonl.gz", "de.txt.bz2", "valid.en.zip"):
        content = {"tmx": tmx(), "jsonl.gz": gzip.compress(jsonl()), "txt.bz2": bz2.compress(side(0))}
        ending = name.partition(".de." if ".de." in name else ".en." if ".en." in name else ".")[2]
        (tmp_path / "mono" / name).write_bytes(content.get(ending, zipped({"a.en": side(1)})))
    splits = find_text(tmp_path / "mono")
    assert {split: sorted(file.language for file in files) for split, files in splits.items()} == {
        "train": ["de", "de", "en"], "valid": ["en"]
    }  # fmt: skip
    for file in (file for files in splits.values() for file in files):
        expected = [" ".join(pair[file.language == "en"].split()) for pair in PAIRS]
        assert [sentence for sentence, _ in read_sentences(file)] == expected
    assert [text for text, _ in read_sentences(TextFile("en", tmp_path / "a.de-en.tmx"))] == [en for _, en in PAIRS]


@pytest.mark.parametrize("name", CONTENTS)
def test_evaluation_sets_of_every_format_are_excluded(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENTS[name])
    excluded = load_exclusion([tmp_path])
    assert excluded.contains(sentence_hashes([text for pair in PAIRS for text in pair])).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.tmx", "a.jsonl", "a.csv", "a.zip", "a.parquet", "a.zst"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    """Compare peak memory after 5,000 pairs and after 100,000, which are 20 MB."""
    makers: dict[str, Callable[[list[tuple[str, str]]], bytes]] = {
        "a.tmx": tmx, "a.jsonl": jsonl, "a.csv": csv_of, "a.parquet": parquet_of, "a.zst": zstd_of,
        "a.zip": lambda pairs: zipped({"x.tmx": tmx(pairs)}),
    }  # fmt: skip
    if name in ("a.parquet", "a.zst"):
        pytest.importorskip({"a.parquet": "pyarrow", "a.zst": "zstandard"}[name], reason="an extra is not installed")
    for count in (5_000, 100_000):
        (tmp_path / str(count)).mkdir()
        pairs = [(f"das Haus mit der Nummer {n} " * 3, f"the house number {n} " * 3) for n in range(count)]
        (tmp_path / str(count) / name).write_bytes(makers[name](pairs))
    script = (
        "import re, sys\n"
        "from xrep.text.readers import parse_bitext, read_pairs, read_text\n"
        "for count in (5_000, 100_000):\n"
        "    path = f'{sys.argv[1]}/{count}/{sys.argv[2]}'\n"
        "    rows = read_text(path) if path.endswith('zst') else read_pairs(parse_bitext(f'de-en={path}'))\n"
        "    assert sum(1 for _ in rows) == count\n"
        "    print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])"
    )
    line = [sys.executable, "-c", script, str(tmp_path), name]
    finished = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    few, many = map(int, finished.stdout.split())
    assert many - few < 8_000, f"{few} KB after 5,000 pairs, {many} KB after 100,000"


def parquet_of(pairs: list[tuple[str, str]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    file, table = io.BytesIO(), pyarrow.table({"de": [de for de, _ in pairs], "en": [en for _, en in pairs]})
    parquet.write_table(table, file, row_group_size=5_000)
    return file.getvalue()


def zstd_of(pairs: list[tuple[str, str]]) -> bytes:
    import zstandard

    return zstandard.compress("".join(f"{de}\t{en}\n" for de, en in pairs).encode())
