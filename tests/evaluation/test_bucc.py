import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured, published, write
from tests.retrieval import plain_margins
from tests.support.corpus import sentence_pairs
from xrep.errors import UserError
from xrep.evaluation import bucc
from xrep.evaluation.bucc import Bucc
from xrep.retrieval.margins import Margin, Retrieval

TRIGRAMS = NgramEncoder(width=256)


@pytest.fixture
def write_split(tmp_path: Path) -> Callable[..., Path]:
    """Write a split in the layout of the shared task: pairs among sentences without a translation."""

    def write_files(name: str, seed: int, pairs: int = 40, others: int = 60) -> Path:
        drawn = sentence_pairs(pairs + 2 * others, seed)
        # Both languages share names, which trigrams can find.
        named = [(f"{a} {n}", f"{b} {n}") for n, (a, b) in enumerate(drawn, start=1000 * (seed + 1))]
        sides = [pair[0] for pair in named[: pairs + others]], [pair[1] for pair in named[:pairs] + named[-others:]]
        for language, sentences in zip(("de", "en"), sides, strict=True):
            lines = [f"{language}-{row:09d}\t{sentence}" for row, sentence in enumerate(sentences)]
            write(tmp_path / f"de-en.{name}.{language}", random.Random(seed).sample(lines, len(lines)))
        return write(tmp_path / f"de-en.{name}.gold", [f"de-{row:09d}\ten-{row:09d}" for row in range(pairs)])

    return write_files


def plain_result(
    split: bucc.BuccSplit, options: Bucc.Config, encoder: NgramEncoder = TRIGRAMS
) -> tuple[dict[tuple[int, int], float], set]:
    x, y = (encoder.encode(side.columns[0], side.languages[0]) for side in (split.source, split.target))
    found = plain_margins.pairs(x, y, options.neighbours, options.margin, options.retrieval)
    return found, set(map(tuple, split.pairs.gold.tolist()))


@pytest.mark.parametrize("margin", get_args(Margin))
@pytest.mark.parametrize("retrieval", get_args(Retrieval))
def test_the_threshold_of_one_split_is_applied_to_the_other(write_split, margin, retrieval):
    gold = [write_split(name, seed, 20, 30) for seed, name in enumerate(("training", "test"))]
    tuning, test = map(bucc.read_split, gold)
    options = Bucc.Config(data=str(gold[0].parent), margin=margin, retrieval=retrieval, neighbours=3)

    def table(options: Bucc.Config) -> dict[str, Any]:
        return measured(Bucc, TRIGRAMS, **vars(options)).values["tables"]["de-en"]

    figures, result = measured(Bucc, TRIGRAMS, **vars(options)), table(options)
    assert len(set(figures.files)) == 6 and f"{result['precision']:.2f}" in figures.text
    assert figures.headline == {"mean F1": result["f1"]}
    assert figures.resamples["mean F1"].mean() == pytest.approx(result["f1"], abs=5)
    threshold, _ = plain_margins.best_f1(*plain_result(tuning, options))
    assert result["threshold_from"] == "training" and result["threshold"] == pytest.approx(threshold, abs=2e-6)
    mined = plain_result(test, options)
    assert result["f1"] == pytest.approx(plain_margins.f1_at(*mined, threshold))
    oracle = table(replace(options, oracle=True))
    best, f1 = plain_margins.best_f1(*mined)
    assert (oracle["threshold_from"], oracle["f1"]) == ("oracle", pytest.approx(f1))
    assert oracle["threshold"] == pytest.approx(best, abs=2e-6) and f1 >= result["f1"]
    assert bucc.plan(["dev", "test"], "de-en", options) == ("test", "dev")
    assert bucc.plan(["sample", "training"], "de-en", replace(options, split="training")) == ("training", "sample")
    given = table(replace(options, threshold=result["threshold"]))
    assert given == {**result, "threshold_from": "given"}


def test_a_pair_belongs_to_the_language_beside_english(write_split) -> None:
    folder = write_split("test", 1, 20, 30).parent
    for languages, count in ((["de"], 2), (["de", "en"], 2), (["fr", "en"], 0)):
        test = Bucc(Bucc.Config(data=str(folder), oracle=True))
        test.narrow(languages)
        assert len(test.tables) == count


def test_equal_sentences_count_once(tmp_path: Path) -> None:
    """The gold file may name any id of a sentence, and two gold pairs of equal sentences count once. A sentence of two
    pairs, one of which was in the training text, stays for the other."""
    write(tmp_path / "de-en.dev.de", ["d1\tHaus", "", "d2\tHof", "d3\tHaus"])
    write(tmp_path / "de-en.dev.en", ["e1\tyard", "e2\thouse", "e3\thouse", "e4\thome"])
    split = bucc.read_split(write(tmp_path / "de-en.dev.gold", ["d3\te3", "d1\te2", "", "d2\te1", "d1\te4"]))
    assert (*split.source.columns, *split.target.columns) == (["Haus", "Hof"], ["yard", "house", "home"])
    assert split.pairs.gold.tolist() == [[0, 1], [0, 2], [1, 0]]
    kept = bucc.leave_out_pairs(split, split.pairs.only(np.array([False, True, True])))
    assert (*kept.source.columns, *kept.target.columns) == (["Haus", "Hof"], ["yard", "home"])
    assert kept.pairs.gold.tolist() == [[0, 1], [1, 0]]
    write(tmp_path / "de-en.dev.de", ["d1\tHaus", "d2\tHaus", "d3\tHaus"])
    options = {"data": str(tmp_path), "neighbours": 1, "drop_repeated": True, "oracle": True}
    with pytest.raises(UserError, match="de-en: no candidates .*; use another margin or `retrieval`, or leave"):
        measured(Bucc, TRIGRAMS, **options)
    write(tmp_path / "de-en.dev.gold", ["", " "])
    with pytest.raises(UserError, match="de-en.dev.gold: only empty lines"):
        bucc.read_split(tmp_path / "de-en.dev.gold")


def test_the_sample_of_the_shared_task_is_read() -> None:
    split = bucc.read_split(bucc.find_gold("all", published("mining/bucc2018_zh-en_sample"))["zh-en"]["dev"])
    assert (split.source.gold.sum(), split.target.gold.sum(), len(split.pairs)) == (8624, 13589, 257)
