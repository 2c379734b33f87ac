"""Files of hard negatives are read, tokenised once, and found by their pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from xrep.data.batch import HardNegatives
from xrep.data.negatives import NegativeStore, prepare_negatives
from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.tokenizer import Tokenizer

PAIRS = sentence_pairs(12)
FILE = {0: [3, 4], 1: [5], 2: [6, 7, 8]}
"""The negatives of some pairs, by their numbers."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))


def write(path: Path, rows: dict[int, list[int]]) -> str:
    lines = ["\t".join([*PAIRS[row], *(PAIRS[other][1] for other in others)]) + "\n" for row, others in rows.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def hashes(pairs: list[tuple[str, str]]) -> np.ndarray:
    return np.stack([sentence_hashes(side) for side in zip(*pairs, strict=True)], axis=1)


def texts(found: HardNegatives, tokenizer: Tokenizer) -> list[tuple[int, str]]:
    rows = zip(found.tokens.tokens.tolist(), found.tokens.lengths.tolist(), strict=True)
    decoded = [tokenizer.decode(ids[1 : length - 1]) for ids, length in rows]
    return list(zip(found.rows.tolist(), decoded, strict=True))


def prepare(tokenizer: Tokenizer, *files: str, exclude: tuple[str, ...] = ()) -> NegativeStore:
    return prepare_negatives(files, tokenizer, exclude)


def test_negatives_are_found_by_their_pairs(tokenizer, text, tmp_path, capsys):
    store = prepare(tokenizer, write(tmp_path / "one.tsv", FILE), write(tmp_path / "two.tsv", {2: [9], 9: [0]}))
    assert len(store) == 8 and capsys.readouterr().out.startswith("tokenising ")
    wanted = [2, 10, 0, 1, 2]  # in any order and more than once; pair 10 has none
    found = store.of(hashes([PAIRS[row] for row in wanted]), text)
    expected = [(0, 6), (0, 7), (0, 8), (0, 9), (2, 3), (2, 4), (3, 5), (4, 6), (4, 7), (4, 8), (4, 9)]
    assert texts(found, tokenizer) == [(row, PAIRS[other][1]) for row, other in expected]
    assert found.rows.tolist() == found.host_rows.tolist()
    assert store.counts(hashes(PAIRS)).tolist() == [2, 1, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert len(store.of(hashes(PAIRS[10:]), text).tokens) == 0
    for rows in ((0, 2), (1, 4), (3, 3), (4, 5)):
        part = found.of_rows(*rows)
        assert part.rows.tolist() == part.host_rows.tolist()
        assert texts(part, tokenizer) == [(r - rows[0], own) for r, own in texts(found, tokenizer) if r in range(*rows)]
    again = prepare(tokenizer, str(tmp_path / "one.tsv"), str(tmp_path / "two.tsv"))
    assert again.data.path == store.data.path and not capsys.readouterr().out


def test_repeated_wrong_and_excluded_negatives_are_left_out(tokenizer, text, tmp_path):
    german, english = PAIRS[0]
    others = [PAIRS[1][1], PAIRS[1][1].upper() + "!", english + ".", german, PAIRS[2][1], PAIRS[3][1]]
    (tmp_path / "x.tsv").write_text("\t".join([german, english, *others]) + "\n", encoding="utf-8")
    (tmp_path / "test.en").write_text(PAIRS[2][1] + "\n", encoding="utf-8")
    store = prepare(tokenizer, str(tmp_path / "x.tsv"), exclude=(str(tmp_path / "test.en"),))
    found = texts(store.of(hashes(PAIRS[:1]), text), tokenizer)
    assert found == [(0, PAIRS[1][1]), (0, PAIRS[3][1])]


@pytest.mark.parametrize(("content", "message"), [
    ("a\tb\tc\na\tb\n", "x.tsv:2: not a pair with negatives; give what xrep-mine negatives writes"),
    ("a\tb\tB.\n", "x.tsv: no negatives are left"),
])  # fmt: skip
def test_files_that_are_none(tokenizer: Tokenizer, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        prepare(tokenizer, str(tmp_path / "x.tsv"))
    assert not any((tmp_path / "home").rglob("manifest.json"))
