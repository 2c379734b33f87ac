"""SentEval's files: the published layouts as small files, and the real files if they are there."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import published
from tests.evaluation.senteval_sets import write_sets
from xrep.errors import UserError
from xrep.evaluation.senteval.evaluate import SETS, Splits, find_sets, read_set


def read_all(folder: Path, lang: str = "en") -> dict[str, Splits]:
    return {name: read_set(name, *place, lang) for name, place in find_sets(folder).items()}


def classes(splits: Splits) -> int:
    return 1 + int(max(split.gold.max() for split in splits.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sets(tmp_path / "downstream")


@pytest.mark.slow
def test_sizes_and_classes_of_the_published_sets() -> None:
    sick = {"train": 4500, "dev": 500, "test": 4927}
    expected = {
        "MR": ({"all": 10662}, 2), "CR": ({"all": 3775}, 2), "SUBJ": ({"all": 10000}, 2), "MPQA": ({"all": 10606}, 2),
        "SST2": ({"train": 67349, "dev": 872, "test": 1821}, 2),
        "SST5": ({"train": 8544, "dev": 1101, "test": 2210}, 5),
        "TREC": ({"train": 5452, "test": 500}, 6), "MRPC": ({"train": 4076, "test": 1725}, 2),
        "SICK-E": (sick, 3), "SICK-R": (sick, 6),
    }  # fmt: skip
    sets = read_all(published("senteval").parent)
    found = {name: ({s: len(split) for s, split in own.items()}, classes(own)) for name, own in sets.items()}
    assert found == expected
    assert np.bincount(sets["MR"]["all"].gold).tolist() == [5331, 5331]
    assert sum(text == "." for text in sets["CR"]["all"].columns[0]) >= 4  # the published file has blank lines
    assert any("é" in text for text in sets["MR"]["all"].columns[0])  # latin-1


def test_all_sets_of_the_download_are_found(folder: Path) -> None:
    sets = read_all(folder)
    assert list(sets) == list(SETS)
    assert [classes(splits) for splits in sets.values()] == [2, 2, 2, 2, 2, 5, 6, 2, 3, 6]
    first, second = (side[0] for side in sets["MRPC"]["train"].columns)
    assert first.startswith('"') and first.endswith("he said.") and '"' not in second  # quotation marks are text
    assert sets["SICK-R"]["test"].gold.max() == 5
    assert all("\r" not in text for text in sets["SICK-E"]["test"].columns[1])


def test_latin1_is_read_in_english_alone_and_other_published_names(folder: Path) -> None:
    """TREC.train and stsa.fine.*, in which the label comes first, are read as well."""
    sets, path = read_all(folder), folder / "MR" / "rt-polarity.pos"
    path.write_bytes("caf\xe9 one\x85 line\n\n  spaces   inside \n".encode("latin-1"))
    assert read_all(folder)["MR"]["all"].columns[0][:3] == ["café one line", ".", "spaces inside"]
    with pytest.raises(UserError, match=r"rt-polarity\.pos:1: invalid UTF-8"):
        read_all(folder, "fr")
    path.write_text("café en UTF-8\n" * 3, encoding="utf-8")
    (folder / "MR" / "rt-polarity.neg").write_text("non\n" * 2)
    split = read_all(folder, "fr")["MR"]["all"]
    assert list(zip(split.columns[0], split.gold, strict=True)) == [("café en UTF-8", 1)] * 3 + [("non", 0)] * 2
    for old, new in (("train_5500.label", "TREC.train"), ("TREC_10.label", "TREC.test")):
        (folder / "TREC" / old).rename(folder / "TREC" / new)
    for part in ("train", "dev", "test"):
        rows = [line.split("\t") for line in (folder / "SST/fine" / f"sentiment-{part}").read_text().splitlines()]
        (folder / f"stsa.fine.{part}").write_text("".join(f"{label} {text}\n" for text, label in rows))
    shutil.rmtree(folder / "SST" / "fine")
    again = read_all(folder)
    for name in ("TREC", "SST5"):
        for split, given in sets[name].items():
            assert again[name][split].columns == given.columns
            assert (again[name][split].gold == given.gold).all()


def test_what_is_wrong_in_a_file_and_which_files_are_missing_or_there_twice(folder: Path) -> None:
    for file, old, new, message in (
        ("SST/binary/sentiment-dev", "\t0\n", " 0\n", r"sentiment-dev:1: no label \(0 1\) and sentences in '"),
        (
            "TREC/TREC_10.label",
            "NUM:count",
            "ZAHL:count",
            r"TREC_10.label:1: no label \(ABBR DESC .*\) and sentences in 'ZAHL:",
        ),
        ("SICK/SICK_trial.txt", "0\t", "", r"SICK_trial.txt:2: no label \(CONTRADICTION"),
    ):
        text = (folder / file).read_text(encoding="utf-8")
        (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            read_all(folder)
        (folder / file).write_text(text, encoding="utf-8")
    shutil.copytree(folder / "MR", folder / "de" / "MR")
    with pytest.raises(UserError, match=r"two copies of MR: in .*MR and in .*de/MR"):
        find_sets(folder)
    (folder / "de" / "MR" / "rt-polarity.neg").unlink()
    with pytest.raises(UserError, match=r"de/MR/rt-polarity\.neg: no such file"):
        read_all(folder / "de")
