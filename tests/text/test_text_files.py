"""Monolingual text: the files that are read, and the ends of documents."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text.readers import TextFile, find_text, read_sentences


def names(folder: Path) -> dict[str, list[tuple[str, str]]]:
    return {split: [(f.language, f.path.name) for f in files] for split, files in find_text(folder).items()}


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("news.2012.de", "de.txt", "train.eng.gz", "zho.txt.xz", "valid.de", "news.dev.fr.txt", "test.de",
                 "README.md", "data.tsv", ".hidden.de", "notes.txt"):  # fmt: skip
        (tmp_path / name).write_bytes(b"a\n")
    (tmp_path / "folder.de").mkdir()
    assert names(tmp_path) == {
        "train": [("de", "de.txt"), ("de", "news.2012.de"), ("en", "train.eng.gz"), ("zh", "zho.txt.xz")],
        "valid": [("fr", "news.dev.fr.txt"), ("de", "valid.de")],
    }


def test_named_files(tmp_path: Path) -> None:
    found = find_text("deu=a.txt,en=b,c.gz,de=d=e")
    assert found == {"train": [TextFile("de", Path("a.txt")), TextFile("en", Path("b,c.gz")),
                               TextFile("de", Path("d=e"))]}  # fmt: skip
    (tmp_path / "de=x").mkdir()
    (tmp_path / "de=x" / "train.fr").write_text("a\n")
    assert names(tmp_path / "de=x") == {"train": [("fr", "train.fr")]}


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder; check the name; expected news.de"):
        find_text(tmp_path / "nothing")
    (tmp_path / "valid.de").write_text("a\n")
    with pytest.raises(UserError, match="no training text found; expected news.de, train.de or de.txt"):
        find_text(tmp_path)


@pytest.mark.parametrize("ending, pack", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_documents(tmp_path: Path, ending: str, pack) -> None:
    path = tmp_path / f"train.de{ending}"
    path.write_bytes(pack("\n\n  eins  zwei\t drei \nvier\r\n \t\nfünf\n\n\nsechs\nsieben".encode()))
    assert list(read_sentences(TextFile("de", path))) == [
        ("eins zwei drei", True), ("vier", False), ("fünf", True), ("sechs", True), ("sieben", False)
    ]  # fmt: skip
