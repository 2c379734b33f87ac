"""Readers: lines and documents, the notation of text and its layouts in folders, and the evaluation sets to exclude."""

import gzip
import lzma
import os
from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.examples import orient, read_pairs, read_sentences
from xrep.text.exclusion import load_exclusion
from xrep.text.find import Bitext, TextFile, discover_bitext, discover_nli, find_text, parse_bitext
from xrep.text.lines import read_lines

ENGLISH = "They are at home.\nWhat do you want?\nThis is the book of my friend.\nShe will not come with us.\n"
GERMAN = "Sie sind zu Hause.\nWas willst du?\nDas ist das Buch meines Freundes.\nSie kommt nicht mit.\n"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_only_newlines_end_a_line(tmp_path):
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\x0b\xc2\x85\r.\n\n last")
    assert list(read_lines(file)) == [(1, "one"), (2, "two\u2028still two\x0b\x85\r."), (3, ""), (4, " last")]


@pytest.mark.parametrize("module", [gzip, lzma])
def test_compressed_files_are_known_by_content(tmp_path, module):
    packed = module.compress("grün\n".encode()) + module.compress(b"blau\n")
    assert list(read_lines(write(tmp_path / "colours", packed))) == [(1, "grün"), (2, "blau")]
    for name in ("plain.gz", "plain.xz"):
        assert list(read_lines(write(tmp_path / name, "rot\n"))) == [(1, "rot")]
    text = "\n\n  eins  zwei\t drei \nvier\r\n \t\nfünf\n\n\nsechs\nsieben".encode()
    documents = write(tmp_path / "train.de.x", module.compress(text))
    assert list(read_sentences(TextFile("de", documents))) == [
        ("eins zwei drei", True), ("vier", False), ("fünf", True), ("sechs", True), ("sieben", False)
    ]  # fmt: skip


@pytest.mark.parametrize(("spec", "expected"), [
    ("de-en=deu-eng.tsv", Bitext(("de", "en"), ("deu-eng.tsv",), (0, 1))),
    ("en-de=x.tsv.gz", Bitext(("de", "en"), ("x.tsv.gz",), (1, 0))),
    ("eng-fra=train.en,train.fr", Bitext(("fr", "en"), ("train.fr", "train.en"))),
    ("deu-eng=x.tsv:2,1", Bitext(("de", "en"), ("x.tsv",), (1, 0), True)),
    ("en-zh-Hans=x.tsv:1,4", Bitext(("zh", "en"), ("x.tsv",), (3, 0), True)),
    ("de-fr=a.de,b.fr@70", Bitext(("de", "fr"), ("a.de", "b.fr"), sample=70)),
    ("en-de=x.tsv:1,2@9", Bitext(("de", "en"), ("x.tsv",), (1, 0), True, 9)),
])  # fmt: skip
def test_notation_of_parallel_text(spec, expected):
    assert parse_bitext(spec) == expected


@pytest.mark.parametrize("name", ["de-en", "en-de"])
@pytest.mark.parametrize("english_first", [True, False])
def test_columns_are_found_whatever_the_name(tmp_path, name, english_first):
    sides = (ENGLISH, GERMAN) if english_first else (GERMAN, ENGLISH)
    rows = "".join(f"{a}\t{b}\tattribution\n" for a, b in zip(*map(str.splitlines, sides), strict=True))
    bitext, note = orient(parse_bitext(f"{name}={write(tmp_path / 'x.tsv', rows)}"))
    expected = list(zip(GERMAN.splitlines(), ENGLISH.splitlines(), strict=True))
    assert [row[1:] for row in read_pairs(bitext)] == expected
    assert (note is None) == (english_first == (name == "en-de"))
    given = parse_bitext(f"{name}={tmp_path}/x.tsv:1,2")
    is_swapped = english_first != (name == "en-de")
    english = 1 if english_first else 2
    warning = f"{tmp_path}/x.tsv: column {english} looks like English, but is read as de; are both swapped?"
    assert orient(given) == (given, warning if is_swapped else None)


def test_numbers_of_sentences_are_not_read_as_text(tmp_path):
    """Pairs of Tatoeba have the number of each sentence before it."""
    file = write(tmp_path / "pairs.tsv", "77\teins\t1276\tone\n" * 3)
    with pytest.raises(UserError, match=rf"name the columns of the text, {file}:2,4$"):
        list(read_pairs(parse_bitext(f"de-en={file}")))
    assert next(read_pairs(parse_bitext(f"de-en={file}:2,4"))) == (1, "eins", "one")


def test_files_that_seem_to_be_swapped_are_read_as_named_with_a_warning(tmp_path):
    german, english = (str(write(tmp_path / f"x.{name}", text)) for name, text in (("de", GERMAN), ("en", ENGLISH)))
    right, swapped = parse_bitext(f"de-en={german},{english}"), parse_bitext(f"de-en={english},{german}")
    assert orient(right) == (right, None)
    assert orient(swapped) == (swapped, f"{english}: looks like English, but is read as de; are the two files swapped?")


def test_an_empty_line_is_no_pair(tmp_path):
    file = write(tmp_path / "x.tsv", "eins\tone\n\nzwei\ttwo\n")
    assert list(read_pairs(parse_bitext(f"de-en={file}"))) == [(1, "eins", "one"), (2, "", ""), (3, "zwei", "two")]


@pytest.mark.parametrize(("scores", "columns"), [("1.640439\t0.871200", "3,4"), ("-0.100000", "2,3"), ("17", "2,3")])
def test_scores_are_not_read_as_text(tmp_path, scores, columns):
    file = write(tmp_path / "kept.tsv", f"{scores}\teins\tone\n" * 12)
    with pytest.raises(UserError, match=rf"begin with numbers; name the columns of the text, {file}:{columns}$"):
        list(read_pairs(parse_bitext(f"de-en={file}")))
    assert next(read_pairs(parse_bitext(f"de-en={file}:{columns}"))) == (1, "eins", "one")
    for rows in ("1.5\t2.5\n", "1\t1\n", f"{scores}\teins\tone\n1.5 km\t1.5 km\tx\n"):
        assert len(list(read_pairs(parse_bitext(f"de-fr={write(tmp_path / 'x.tsv', rows)}")))) == rows.count("\n")


@pytest.mark.parametrize(("german", "english"), [(5, 9), (9, 5)])
def test_both_line_counts_are_named(tmp_path, german, english):
    files = write(tmp_path / "x.de", "ja\n" * german), write(tmp_path / "x.en", "yes\n" * english)
    first = min(german, english) + 1
    with pytest.raises(UserError, match=rf"x\.de:{first}: {german} lines, but .*x\.en has {english}; align"):
        list(read_pairs(Bitext(("de", "en"), tuple(map(str, files)))))


def test_layouts_of_a_folder(tmp_path):
    files = "train.de-en.de train.de-en.en.gz dev.en-fra.fra dev.en-fra.eng val.tr-en.tsv.xz news.spa-eng.v2.tsv "
    files += "wmt_test2016.de-en.tsv train.ja train.zh train.en train.sh README.md train.log notes.tsv "
    files += "train.mos-fr.mos train.mos-fr.fr"
    for name in files.split():
        write(tmp_path / name, "x\n")
    found = {
        split: sorted(
            f"{bitext.name}={','.join(os.path.relpath(path, tmp_path) for path in bitext.paths)}" for bitext in bitexts
        )
        for split, bitexts in discover_bitext(tmp_path).items()
    }
    assert found == {
        "train": [
            "de-en=train.de-en.de,train.de-en.en.gz",
            "es-en=news.spa-eng.v2.tsv",
            "ja-en=train.ja,train.en",
            "mos-fr=train.mos-fr.mos,train.mos-fr.fr",
            "zh-en=train.zh,train.en",
        ],
        "valid": ["fr-en=dev.en-fra.fra,dev.en-fra.eng", "tr-en=val.tr-en.tsv.xz"],
        "test": ["de-en=wmt_test2016.de-en.tsv"],
    }


@pytest.mark.parametrize(("files", "problem"), [
    ("notes.txt valid.de-en.tsv", "no parallel training text found; expected train.de-en.de"),
    ("train.de train.fr train.es", "train has de, es, fr, which makes no pairs"),
    ("train.de train.deu.gz train.en", "a second de side"),
])  # fmt: skip
def test_folders_without_pairs(tmp_path, files, problem):
    for name in files.split():
        write(tmp_path / name, "x\n")
    with pytest.raises(UserError, match=problem):
        discover_bitext(tmp_path)


@pytest.mark.parametrize("find", [discover_bitext, lambda path: discover_nli(path, "en")])
def test_who_reads_data_sets_is_told(find):
    with pytest.raises(UserError, match=r"hf:\./a:train: data sets are not read here; give its pairs to xrep-preproc"):
        find("hf:./a:train")


def test_files_of_one_language(tmp_path):
    for name in ("news.2012.de", "de.txt", "train.eng.gz", "zho.txt.xz", "valid.de", "news.dev.fr.txt", "test.de",
                 "README.md", "data.tsv", ".hidden.de", "notes.txt", "folder.de/x"):  # fmt: skip
        write(tmp_path / "text" / name, b"a\n")
    found = find_text(tmp_path / "text")
    assert {split: [(file.language, file.path.name) for file in files] for split, files in found.items()} == {
        "train": [("de", "de.txt"), ("de", "news.2012.de"), ("en", "train.eng.gz"), ("zh", "zho.txt.xz")],
        "valid": [("fr", "news.dev.fr.txt"), ("de", "valid.de")],
    }
    named = [TextFile(code, Path(name)) for code, name in (("de", "a.txt"), ("en", "b,c.gz"), ("de", "d=e"))]
    assert find_text("deu=a.txt,en=b,c.gz,de=d=e") == {"train": named}
    write(tmp_path / "de=x" / "train.fr", "a\n")
    assert [file.language for file in find_text(tmp_path / "de=x")["train"]] == ["fr"]
    write(tmp_path / "other" / "valid.de", "a\n")
    for folder, problem in (("none", "no such folder; check the name; expected news.de"),
                            ("other", "no training text found; expected news.de, train.de or de.txt")):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            find_text(tmp_path / folder)


def test_lines_and_cells_are_excluded(tmp_path):
    """``tests/cli/test_exclusion.py`` has every layout."""
    write(tmp_path / "x.deu", "Das ist ein Test.\n...\nein Wort\tmit Tab\n")
    write(tmp_path / "deep" / "pairs.tsv", "Links\tOn the left\n")
    write(tmp_path / "test.sh", "Na srpskohrvatskom.\n")  # sh is a language, too
    write(tmp_path / "README", "What this is\n")
    columns = "\tX" * 8
    write(tmp_path / "x.conllu", f"# text = Ja gut\n1\tJa{columns}\n2\tgut{columns}\n\n")
    write(tmp_path / "panx.tsv", "de:Kiel\tB-LOC\nde:ist\tO\n\n")
    write(tmp_path / "test.csv", 'label,sentence\n1,"Ein Hund, der bellt"\n2,"Zwei ""große""\nKatzen"\n')
    excluded = load_exclusion([tmp_path])
    texts = ["DAS IST EIN TEST", "links", "On the left!", "mit Tab", "Na srpskohrvatskom", "Ein Hund, der bellt",
             "Zwei große Katzen", "Ja gut", "Kiel ist"]  # fmt: skip
    texts += ["Links\tOn the left", "...", "What this is", "der bellt", "1", "label"]
    assert excluded.contains(sentence_hashes(texts)).tolist() == [True] * 9 + [False] * 6
