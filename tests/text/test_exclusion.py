"""Exclusion of evaluation sets: which texts of a file count. ``tests/cli/test_exclusion.py`` has every layout."""

from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.exclusion import load_exclusion


def test_lines_and_cells_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "x.deu").write_text("Das ist ein Test.\n...\nein Wort\tmit Tab\n", encoding="utf-8")
    (tmp_path / "deep" / "pairs.tsv").write_text("Links\tOn the left\n", encoding="utf-8")
    (tmp_path / "test.sh").write_text("Na srpskohrvatskom.\n", encoding="utf-8")  # sh is a language, too
    (tmp_path / "README").write_text("What this is\n", encoding="utf-8")
    excluded = load_exclusion([tmp_path])
    texts = [
        "DAS IST EIN TEST",
        "links",
        "On the left!",
        "mit Tab",
        "Na srpskohrvatskom",
        "Links\tOn the left",
        "...",
        "What this is",
    ]
    assert excluded.contains(sentence_hashes(texts)).tolist() == [True] * 5 + [False] * 3


def test_tables_with_commas(tmp_path: Path) -> None:
    rows = 'label,sentence\n1,"Ein Hund, der bellt"\n2,"Zwei ""große""\nKatzen"\n'
    (tmp_path / "test.csv").write_text(rows, encoding="utf-8")
    excluded = load_exclusion([tmp_path])
    texts = ["Ein Hund, der bellt", "Zwei große Katzen", "der bellt", "1", "label"]
    assert excluded.contains(sentence_hashes(texts)).tolist() == [True, True, False, False, False]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_exclusion([tmp_path / "none"])
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="without files"):
        load_exclusion([tmp_path / "sub"])
    for name, content, message in (
        ("bad.txt", b"ok\n\xff\n", r"bad\.txt:2: invalid UTF-8"),
        ("a.csv", b'a,b\n"c,d\n', r"a\.csv:\d: not CSV"),
        ("a.sgm", b"<seg>caf\xe9</seg>\n", r"a\.sgm: invalid UTF-8"),
        ("a.jsonl", b'{"a": "b"}\n{\n', r"a\.jsonl:2: not JSON"),
    ):
        (tmp_path / "sub" / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            load_exclusion([tmp_path])
        (tmp_path / "sub" / name).unlink()
