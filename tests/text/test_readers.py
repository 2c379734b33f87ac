"""Readers: lines, the notation of parallel text and its layouts in folders, and one-line errors for bad files."""

import gzip
import lzma
import os
from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text.readers import Bitext, discover_bitext, orient, parse_bitext, read_lines, read_pairs

REAL = Path(os.environ.get("XREP_DATA") or Path(__file__).parents[3] / "shared" / "data") / "bitext"
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason="no real data: set XREP_DATA")

ENGLISH = "They are at home.\nWhat do you want?\nThis is the book of my friend.\nShe will not come with us.\n"
GERMAN = "Sie sind zu Hause.\nWas willst du?\nDas ist das Buch meines Freundes.\nSie kommt nicht mit.\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_only_newlines_end_a_line(tmp_path):
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\x0b\xc2\x85\r.\n\n last")
    assert list(read_lines(file)) == [(1, "one"), (2, "two\u2028still two\x0b\x85\r."), (3, ""), (4, " last")]


@pytest.mark.parametrize("module", [gzip, lzma])
def test_archives_are_known_by_content(tmp_path, module):
    packed = module.compress("grün\n".encode()) + module.compress(b"blau\n")
    assert list(read_lines(write(tmp_path / "colours", packed))) == [(1, "grün"), (2, "blau")]
    for name in ("plain.gz", "plain.xz"):
        assert list(read_lines(write(tmp_path / name, "rot\n"))) == [(1, "rot")]


NOISE = os.urandom(4000).hex().encode()


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", None, "empty"),
        (b"fine\nna\xefve\n", 2, "invalid UTF-8 (byte 3 of the line)"),
        (b"fine\nfine\n" + b"word " * 100_000 + b"\n", 3, "100,000 words"),
        (b"fine\n" + b"x" * 1_000_001, 2, "1,000,001 characters"),
        (b"fine\n" + b"x" * 5_000_000, 2, "characters"),
        (gzip.compress(NOISE)[:2000], 1, "gzip"),
        (gzip.compress(b"text\n" * 4000)[:30], None, "gzip"),
        (lzma.compress(NOISE)[:2000], 1, "damaged or truncated xz file"),
        (lzma.compress(b"text\n" * 4000)[:30], None, "damaged or truncated xz file"),
        (lzma.compress(b"text\n" * 4000)[:-40] + bytes(40), None, "damaged or truncated xz file"),
    ],
    ids=[
        "empty", "UTF-8", "words", "one character too many", "long", "noise in gzip", "start of gzip", "noise in xz",
        "start of xz", "zeros in xz",
    ],
)  # fmt: skip
def test_bad_files_name_file_line_and_cure(tmp_path, content, line, problem):
    file = write(tmp_path / "bad.txt", content)
    with pytest.raises(UserError) as error:
        list(read_lines(file))
    assert problem in str(error.value) and str(error.value).startswith(str(file)) and error.value.cure
    assert line is None or error.value.line == line
    assert "\n" not in str(error.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read_lines(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="a folder"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("de-en=deu-eng.tsv", Bitext(("de", "en"), ("deu-eng.tsv",), (0, 1))),
        ("en-de=x.tsv.gz", Bitext(("de", "en"), ("x.tsv.gz",), (1, 0))),
        ("fr-en=train.fr,train.en", Bitext(("fr", "en"), ("train.fr", "train.en"))),
        ("eng-fra=train.en,train.fr", Bitext(("fr", "en"), ("train.fr", "train.en"))),
        ("deu-eng=x.tsv:2,1", Bitext(("de", "en"), ("x.tsv",), (1, 0), True)),
        ("en-zh-Hans=x.tsv:1,4", Bitext(("zh", "en"), ("x.tsv",), (3, 0), True)),
        ("de-fr=a.de,b.fr", Bitext(("de", "fr"), ("a.de", "b.fr"))),
        ("de-fr=a.de,b.fr@70", Bitext(("de", "fr"), ("a.de", "b.fr"), sample=70)),
        ("en-de=x.tsv:1,2@9", Bitext(("de", "en"), ("x.tsv",), (1, 0), True, 9)),
    ],
)
def test_parse_bitext(spec, expected):
    assert parse_bitext(spec) == expected


@pytest.mark.parametrize("spec", ["x.tsv", "de=x.tsv", "de-en=", "de-en=a,b,c", "de-deu=x.tsv", "de-en=x:1,1", "d-e=x"])
def test_parse_bitext_refuses(spec):
    with pytest.raises(UserError, match="write de-en=FILE.tsv"):
        parse_bitext(spec)


@pytest.mark.parametrize("name", ["de-en", "en-de"])
@pytest.mark.parametrize("english_first", [True, False])
def test_columns_are_found_whatever_the_name(tmp_path, name, english_first):
    sides = (ENGLISH, GERMAN) if english_first else (GERMAN, ENGLISH)
    rows = "".join(f"{a}\t{b}\tattribution\n" for a, b in zip(*map(str.splitlines, sides), strict=True))
    file = write(tmp_path / "x.tsv", rows)
    bitext, note = orient(parse_bitext(f"{name}={file}"))
    assert [(source, target) for _, source, target in read_pairs(bitext)] == list(
        zip(GERMAN.splitlines(), ENGLISH.splitlines(), strict=True)
    )
    assert (note is None) == (english_first == (name == "en-de"))


def test_given_columns_stay(tmp_path):
    file = write(tmp_path / "x.tsv", "What is this?\tWas ist das?\n" * 50)
    bitext = parse_bitext(f"de-en={file}:1,2")
    assert orient(bitext) == (bitext, None)


def test_rows_that_are_no_pairs(tmp_path):
    file = write(tmp_path / "x.tsv", "eins\tone\n\nzwei\n")
    pairs = read_pairs(parse_bitext(f"de-en={file}"))
    assert [next(pairs), next(pairs)] == [(1, "eins", "one"), (2, "", "")]
    with pytest.raises(UserError, match=r"x\.tsv:3: 1 column where two columns are needed"):
        next(pairs)


@pytest.mark.parametrize(("german", "english"), [(5, 9), (9, 5), (3, 4)])
def test_both_line_counts_are_named(tmp_path, german, english):
    files = write(tmp_path / "x.de", "ja\n" * german), write(tmp_path / "x.en", "yes\n" * english)
    first = min(german, english) + 1
    with pytest.raises(UserError, match=rf"x\.de:{first}: {german} lines, but .*x\.en has {english}; align"):
        list(read_pairs(Bitext(("de", "en"), tuple(map(str, files)))))


def names(directory: Path, found: dict[str, list[Bitext]]) -> dict[str, list[str]]:
    return {
        split: sorted(f"{b.name}={','.join(os.path.relpath(p, directory) for p in b.paths)}" for b in bitexts)
        for split, bitexts in found.items()
    }


def test_layouts_of_a_folder(tmp_path):
    files = "train.de-en.de train.de-en.en.gz dev.en-fra.fra dev.en-fra.eng val.tr-en.tsv.xz news.spa-eng.v2.tsv "
    files += "wmt_test2016.de-en.tsv train.ja train.zh train.en README.md train.log notes.tsv"
    for name in files.split():
        write(tmp_path / name, "x\n")
    assert names(tmp_path, discover_bitext(tmp_path)) == {
        "train": [
            "de-en=train.de-en.de,train.de-en.en.gz",
            "es-en=news.spa-eng.v2.tsv",
            "ja-en=train.ja,train.en",
            "zh-en=train.zh,train.en",
        ],
        "valid": ["fr-en=dev.en-fra.fra,dev.en-fra.eng", "tr-en=val.tr-en.tsv.xz"],
        "test": ["de-en=wmt_test2016.de-en.tsv"],
    }


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ("notes.txt valid.de-en.tsv", "no parallel training text found; expected train.de-en.de"),
        ("train.de-en.de", "train has de, which makes no pairs"),
        ("train.de train.fr train.es", "train has de, es, fr, which makes no pairs"),
        ("train.de train.deu.gz train.en", "a second de side"),
    ],
)
def test_folders_without_pairs(tmp_path, files, problem):
    for name in files.split():
        write(tmp_path / name, "x\n")
    with pytest.raises(UserError, match=problem):
        discover_bitext(tmp_path)


@needs_data
def test_real_folders():
    multi30k = names(REAL / "multi30k", discover_bitext(REAL / "multi30k"))
    assert multi30k["valid"] == [f"{x}-en=val.{x}.gz,val.en.gz" for x in ("cs", "de", "fr")]
    manythings = discover_bitext(REAL / "manythings")
    assert sorted(bitext.name for bitext in manythings["train"]) == ["de-en", "es-en", "fr-en", "ja-en", "zh-en"]
    assert all(orient(bitext)[0].columns == (1, 0) for bitext in manythings["train"])
