"""Inference data in all published formats."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from tests.support import nli_data
from tests.support.nli_data import nli_rows, write, write_columns, write_jsonl, write_parallel, write_simcse
from xrep.errors import UserError
from xrep.text.examples import Example
from xrep.text.find import discover_nli, discover_nli_test
from xrep.text.nli import LABELS, read_nli

ROWS = nli_rows(4)


def expected(rows: list[tuple[str, str, str]], language: str = "en") -> list[Example]:
    return [Example((one, two), (language, language), LABELS.index(label)) for one, two, label in rows]


def read(path: Path, split: str = "train", language: str = "en", **options) -> list[Example]:
    return list(read_nli(discover_nli(path, language)[split], triplets=options.pop("triplets", False), **options))


def test_snli_and_mnli(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "snli_1.0" / "snli_1.0_train.jsonl", ROWS[:6])
    nli_data.write_snli_table(tmp_path / "snli_1.0" / "snli_1.0_train.txt", ROWS[6:])  # the same row again
    nli_data.write_snli_table(tmp_path / "snli_1.0" / "snli_1.0_dev.txt", ROWS[:2])
    write_jsonl(tmp_path / "snli_1.0" / "snli_1.0_test.jsonl", [("a", "b", "hidden")])
    write(tmp_path / "snli_1.0" / "README.txt", ["This is text."])
    write_jsonl(tmp_path / "multinli_1.0" / "multinli_1.0_train.jsonl", ROWS[6:])
    write_jsonl(tmp_path / "multinli_1.0" / "multinli_1.0_dev_mismatched.jsonl", ROWS[2:4])
    write_jsonl(tmp_path / "__MACOSX" / "snli_1.0_train.jsonl", ROWS)
    assert read(tmp_path) == expected([*ROWS[6:], *ROWS[:6]])
    assert read(tmp_path, "valid") == expected([*ROWS[2:4], *ROWS[:2]])
    assert read(tmp_path / "snli_1.0") == expected(ROWS[:6])
    assert read(tmp_path / "snli_1.0" / "snli_1.0_train.txt") == expected(ROWS[6:])


def test_quotes_in_glue_are_text(tmp_path: Path) -> None:
    nli_data.write_glue_table(tmp_path / "train.tsv", ROWS)
    nli_data.write_glue_table(tmp_path / "dev_matched.tsv", ROWS[:1])
    nli_data.write_snli_table(tmp_path / "original" / "multinli_1.0_train.txt", ROWS)  # as in GLUE's folder
    assert read(tmp_path) == expected([(one, f'"{two}', label) for one, two, label in ROWS])
    assert len(read(tmp_path, "valid")) == 1


def test_languages_of_cnsd_xnli_and_others(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "cnsd_snli_v1.0.train.jsonl", ROWS[:2])
    plain = write_columns(tmp_path / "train-de.tsv", ROWS[2:4])
    (tmp_path / "train-de.tsv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    french = [(one, two, label.replace("contradiction", "contradictory")) for one, two, label in ROWS]
    write_columns(tmp_path / "multinli.train.fr.tsv", french, "premise\thypo\tlabel")
    write_jsonl(tmp_path / "xnli.dev.jsonl", ROWS[4:6], language="sw")
    header = "language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tmatch"
    rows = [f"bg\t{label}\t\t{one}\t{two}\tTrue" for one, two, label in ROWS[:3]]
    write(tmp_path / "other.dev.tsv", [header, *rows])
    write_parallel(tmp_path, "dev", ROWS[:2])
    found = [*expected(ROWS[:2], "zh"), *expected(ROWS, "fr"), *expected(ROWS[2:4], "de")]
    assert read(tmp_path, language="it") == found
    valid = [*expected(ROWS[:3], "bg"), *expected(ROWS[:2], "it"), *expected(ROWS[4:6], "sw")]
    assert read(tmp_path, "valid", "ita") == valid


def test_files_to_measure_on(tmp_path: Path) -> None:
    write_columns(tmp_path / "xnli" / "dev-de.tsv", ROWS[:2])
    write_columns(tmp_path / "xnli" / "test-de.tsv", ROWS[2:])
    header = "language\tgold_label\tsentence1\tsentence2\tpairID"
    write(tmp_path / "xnli" / "xnli.test.tsv", [header, *(f"sw\t{label}\t{a}\t{b}\t1" for a, b, label in ROWS)])
    write_parallel(tmp_path / "snli", "test", ROWS[:3])

    def measured(path: Path, split: str) -> list[Example]:
        return list(read_nli(discover_nli_test(path, split, "it"), triplets=False))

    assert measured(tmp_path / "xnli", "dev") == expected(ROWS[:2], "de")
    assert measured(tmp_path / "xnli", "test") == [*expected(ROWS[2:], "de"), *expected(ROWS, "sw")]
    assert measured(tmp_path, "test")[:3] == expected(ROWS[:3], "it")
    assert measured(tmp_path / "xnli" / "test-de.tsv", "test") == expected(ROWS[2:], "de")
    with pytest.raises(UserError, match="no dev split for natural language inference; name XNLI.*`split`"):
        measured(tmp_path / "xnli" / "test-de.tsv", "dev")
    with pytest.raises(UserError, match="no training text"):
        discover_nli(tmp_path / "xnli", "it")
    write_columns(tmp_path / "xnli" / "deeper" / "train.tsv", ROWS)
    write_columns(tmp_path / "xnli" / "dev-de.tsv", ROWS).unlink()
    assert read(tmp_path / "xnli") == expected(ROWS), "test files are no reason not to look further"


def test_what_has_no_label_is_counted(tmp_path: Path) -> None:
    rows = [("a  dog\u00a0runs", "it moves", "Entailment"), ("a", "b", "-"), ("", "b", "neutral"), ("c", "d", "")]
    counts: Counter[str] = Counter()
    found = read(write_jsonl(tmp_path / "train.jsonl", rows), counts=counts)
    assert found == [Example(("a dog runs", "it moves"), ("en", "en"), 0)]
    assert counts == {"read": 4, "no label": 2, "empty": 1}


def test_triplets_of_pairs_and_of_simcse(tmp_path: Path) -> None:
    e, n, c = LABELS
    of_p = [("p", "e1", e), ("p", "c1", c), ("p", "n1", n), ("p", "c2", c), ("p", "e3", e), ("p", "e4", e)]
    rows = [of_p[0], ("q", "e2", e), *of_p[1:], ("r", "c3", c)]
    write_jsonl(tmp_path / "a_train.jsonl", rows)
    anchor = 'a "quoted", word'
    write_simcse(tmp_path / "nli_for_simcse.csv", [(anchor, "yes", "no"), ("x", "y", "")])
    counts: Counter[str] = Counter()
    found = [example.sentences for example in read(tmp_path, triplets=True, counts=counts)]
    assert found == [("p", "e1", "c1"), ("p", "e3", "c2"), (anchor, "yes", "no")]
    assert counts == {"read": 10, "empty": 1}
    assert read(tmp_path, triplets=True)[0] == Example(("p", "e1", "c1"), ("en",) * 3, None)
    with pytest.raises(UserError, match="nli_for_simcse.csv: holds triplets without labels; set `form` triplets"):
        read(tmp_path)


def test_premise_and_hypothesis_in_different_languages(tmp_path: Path) -> None:
    for code in ("de", "fr", "sw"):
        rows = [(f"{one} {code}", f"{two} {code}", label) for one, two, label in ROWS]
        write_columns(tmp_path / f"train-{code}.tsv", rows)
    found = read(tmp_path, cross_lingual=True)
    assert len(found) == 3 * len(ROWS)
    pairs = Counter(example.languages for example in found)
    assert len(pairs) == 6 and set(pairs.values()) == {len(ROWS) // 2} and all(one != two for one, two in pairs)
    premises = [example.sentences[0] for example in found]
    assert premises == [f"{one} {code}" for one, _, _ in ROWS for code in ("de", "fr", "sw")]
    for example in found:
        one, two = (sentence.rpartition(" ") for sentence in example.sentences)
        assert (one[2], two[2]) == example.languages and (one[0], two[0], LABELS[example.label]) in ROWS
    triplets = read(tmp_path, cross_lingual=True, triplets=True)
    assert triplets and all(example.languages[0] not in example.languages[1:] for example in triplets)
    other = next(label for label in LABELS if label != ROWS[5][2])
    write_columns(tmp_path / "train-sw.tsv", [*ROWS[:5], (*ROWS[5][:2], other), *ROWS[6:]])
    with pytest.raises(UserError, match=r"example 6 is not the same in train-de.tsv, train-fr.tsv, train-sw.tsv; give"):
        read(tmp_path, cross_lingual=True)
    alone = {"train-it.tsv": "has no translation beside it", "train.tsv": "has no language in its name"}
    for name, problem in alone.items():
        write_columns(tmp_path / name / name, ROWS)
        with pytest.raises(UserError, match=f"{name}: {problem}; leave out `cross_lingual`"):
            read(tmp_path / name, cross_lingual=True)


@pytest.mark.parametrize(("name", "text", "problem"), [
    ("train.jsonl", '{"sentence1": "a"}', "train.jsonl:1: no keys of a label and a text; name them gold_label, "),
    ("train.tsv", "a\tb\t-\na\tb", "train.tsv:2: 2 columns where 3 are needed; separate the columns"),
    ("train-de.tsv", "a\tb\t1", "train-de.tsv:1: unknown label '1'; labels are entailment, neutral, contr"),
    ("x.csv", "a,b,c\n1,2,3", "x.csv:2: columns a, b, c, not sent0, sent1, hard_neg"),
    ("dev.tsv", "a\tb\tneutral", "no training text for natural language inference; name SNLI, MNLI"),
    ("s1.train", "a", "s2.train: no such file"),
])  # fmt: skip
def test_malformed_files(tmp_path: Path, name: str, text: str, problem: str) -> None:
    write(tmp_path / name, [text])
    with pytest.raises(UserError, match=problem):
        read(tmp_path, triplets=name.endswith("csv"))
