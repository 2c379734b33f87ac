"""scripts/mining_set.py writes the parallel text again, shuffled and without some translations."""

import runpy
from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs
from xrep.evaluation.bucc import read_split


@pytest.fixture
def make(repository: Path):
    return runpy.run_path(str(repository / "scripts" / "mining_set.py"))["main"]


def test_gold_is_the_parallel_text(make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = sorted(set(sentence_pairs(200)))
    for column, language in enumerate(("de", "en")):
        lines = "".join(f"{pair[column]}\n" for pair in pairs)
        (tmp_path / f"text.{language}").write_text(lines, encoding="utf-8")
    given = ["--pair", "de-en", "--removed", "0.25", f"test={tmp_path}/text.de,{tmp_path}/text.en"]
    assert make([*given, "--output", str(tmp_path / "one")]) == make([*given, "--output", str(tmp_path / "two")]) == 0
    count, kept = len(pairs), len(pairs) - round(0.25 * len(pairs))
    assert capsys.readouterr().out == 2 * f"test: {count} and {kept} sentences, {kept} translations\n"
    for name in ("de-en.test.de", "de-en.test.en", "de-en.test.gold"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    split = read_split(tmp_path / "one" / "de-en.test.gold")
    found = set(zip(*split.pairs.columns, strict=True))
    assert found <= set(pairs) and len(split.pairs) == kept
    rows = [pairs.index(pair) for pair in sorted(found, key=lambda pair: split.target.columns[0].index(pair[1]))]
    assert rows != sorted(rows)
