"""Readers of scored pairs: own tables and records, published sets, and what is wrong with damaged ones."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.evaluation.conftest import published
from tests.support.corpus import write_lines
from xrep.errors import UserError
from xrep.text.find import discover_nli
from xrep.text.scored_pairs import read_scored_pairs

ROWS = [("a dog runs", "a dog walks", 4.5), ("a dog runs", "it rains", 0.0), ("a cat", "the cat", 5.0)]


def read(path: Path, split: str = "train", scale: tuple[float, float] = (0, 5)) -> list[tuple[str, ...]]:
    found = read_scored_pairs(discover_nli(path, "en")[split], scale, Counter())
    return [(pair.language, *pair.sentences, f"{pair.label:.2f}") for pair in found]


FORMS = {
    "own.tsv": [f"{score}\t{one}\t{two}" for one, two, score in ROWS],
    "train.txt": [f"{score}\t {one}\t{two} " for one, two, score in ROWS],
    "named.tsv": ["id\tsentence2\tscore\tsentence1", *(f"7\t{two}\t{score}\t{one}" for one, two, score in ROWS)],
    "labelled.tsv": [  # an entailment's label beside the score
        "label\tscore\tsentence1\tsentence2",
        *(f"1\t{score}\t{one}\t{two}" for one, two, score in ROWS),
    ],
    "own.jsonl": [json.dumps(dict(zip(("sentence1", "sentence2", "score"), row, strict=True))) for row in ROWS],
    "sts-train.csv": [f"main\tMSRvid\t2012\t0001\t{score}\t{one}\t{two}" for one, two, score in ROWS],
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read(name: str, tmp_path: Path) -> None:
    write_lines(tmp_path / name, FORMS[name])
    expected = [("en", one, two, f"{score / 5:.2f}") for one, two, score in ROWS]
    assert read(tmp_path) == expected == read(tmp_path / name)


def test_published_sets_have_their_languages_splits_and_ranges(tmp_path: Path) -> None:
    write_lines(tmp_path / "de" / "stsb-de-train.csv", ['"ein Hund, der rennt",ein Hund,2.5'])
    write_lines(tmp_path / "de" / "stsb-de-dev.csv", ["ein Hund,ein Hund,5.0"])
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for name, score in (("train", 3), ("trial", 1), ("test_annotated", 5)):
        write_lines(tmp_path / "sick" / f"SICK_{name}.txt", [header, f"1\ta dog\ta cat\t{score}\tNEUTRAL"])
    assert read(tmp_path) == [("de", "ein Hund, der rennt", "ein Hund", "0.50"), ("en", "a dog", "a cat", "0.50")]
    assert read(tmp_path, "valid") == [("de", "ein Hund", "ein Hund", "1.00"), ("en", "a dog", "a cat", "0.00")]


def test_own_ranges(tmp_path: Path) -> None:
    write_lines(tmp_path / "own.tsv", ["-1\ta b\tc d", "3\te f\tg h"])
    assert [row[-1] for row in read(tmp_path, scale=(-1, 3))] == ["0.00", "1.00"]


def test_a_scale_of_one_beside_published_sets_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "own.tsv", ["0.9\ta b\tc d", "0\te f\tg h"])
    assert [row[-1] for row in read(tmp_path)] == ["0.18", "0.00"]  # alone, only their order matters
    write_lines(tmp_path / "sts-train.csv", FORMS["sts-train.csv"])
    with pytest.raises(UserError, match="own.tsv: scores of at most 0.9, beside published ones"):
        read(tmp_path)
    assert [row[-1] for row in read(tmp_path, scale=(0, 1))] == ["0.90", "0.00", "0.90", "0.00", "1.00"]


def test_a_row_may_name_its_language(tmp_path: Path) -> None:
    row = {"sentence1": "ein Hund", "sentence2": "eine Katze", "score": 5, "language": "deu"}
    write_lines(tmp_path / "own.jsonl", [json.dumps(row)])
    assert read(tmp_path) == [("de", "ein Hund", "eine Katze", "1.00")]


@pytest.mark.parametrize(("name", "line", "problem"), [
    ("own.tsv", "nan\ta\tb", "own.tsv:2: 'nan' is not a score of 0 to 5; give lines score<TAB>sentence<TAB>sentence"),
    ("own.tsv", "\ta\tb", "own.tsv:2: '' is not a score of 0 to 5"),
    ("own.tsv", "a\tb\t3.0", "own.tsv:2: 'a' is not a score of 0 to 5"),
    ("own.tsv", "5.5\ta\tb", "own.tsv:2: '5.5' is not a score of 0 to 5; .*; `lowest_score` and `highest_score` set"),
    ("own.tsv", "3,5\ta\tb", "own.tsv:2: '3,5' is not a score"),
    ("own.tsv", "3.5\ta b", "own.tsv:2: 2 columns where 3 are needed; separate the columns by one tab each"),
    ("own.jsonl", '{"sentence1": "a", "score": 3}', "own.jsonl:2: no keys of a label and a text"),
    ("own.jsonl", '{"sentence1": "a", "sentence2": "b", "score": null}', "own.jsonl:2: the texts, the label and the"),
    ("own.jsonl", '{"sentence": "a", "label": "3"}', "own.jsonl:2: a score and one text, where two are needed"),
    ("sts-train.csv", "main\tMSRvid\t2012\t0001\tinf\ta\tb", "sts-train.csv:2: 'inf' is not a score of 0 to 5"),
    ("sts-train.csv", "3\ta\tb", "sts-train.csv:2: 3 columns where 7 are needed"),
])  # fmt: skip
def test_damaged_files(name: str, line: str, problem: str, tmp_path: Path) -> None:
    write_lines(tmp_path / name, [FORMS[name][0], line])
    with pytest.raises(UserError, match=problem):
        read(tmp_path)


def test_tables_without_a_header_have_three_columns(tmp_path: Path) -> None:
    write_lines(tmp_path / "own.tsv", ["a dog\ta cat"])
    with pytest.raises(
        UserError, match="own.tsv:1: 2 columns and no header .*; write score<TAB>sentence1<TAB>sentence2"
    ):
        read(tmp_path)


def test_published_files() -> None:
    """STS-B and SICK have as many pairs as their papers say. The other folders in it have tests alone."""
    found = {split: Counter(row[0] for row in read(published("sts"), split)) for split in ("train", "valid")}
    assert found["train"] == {"en": 5749 + 4500, "de": 5749, "fr": 5749, "zh": 5749}
    assert found["valid"] == {"en": 1500 + 500, "de": 1500, "fr": 1500, "zh": 1500}
