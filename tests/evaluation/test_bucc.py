from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import measured
from tests.retrieval import plain_margins
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation import bucc
from xrep.evaluation.bucc import Bucc
from xrep.retrieval.margins import MARGINS, RETRIEVALS
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.cleaning import sentence_hashes
from xrep_cli.eval import main

DATA = Path(os.environ.get("XREP_DATA") or Path(__file__).parents[3] / "shared" / "data")
SAMPLE, NEWSTEST = DATA / "mining" / "bucc2018_zh-en_sample", DATA / "mt" / "newstest"


class Trigrams:
    """Hashed character trigrams, each with its own weight, so that no two sentences are equally similar."""

    path, training_hashes = "trigrams", None

    def encode(self, sentences: list[str], lang: str | None = None, *, show_progress: bool = False) -> np.ndarray:
        vectors = np.zeros((len(sentences), 256), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            text = f" {sentence.casefold()} "
            for start in range(len(text) - 2):
                vectors[row, zlib.crc32(text[start : start + 3].encode()) % 256] += 1
        return normalize_rows(vectors * np.random.default_rng(0).uniform(0.5, 1.5, 256).astype(np.float32))


class Planted(Trigrams):
    """Random vectors that are near to each other for gold pairs, because trigrams cannot align Chinese."""

    def __init__(self, split: bucc.Split) -> None:
        draw = np.random.default_rng(0)
        self.vectors = {}
        for side in (split.target, split.source):
            self.vectors[side.language] = dict(
                zip(side.sentences, draw.standard_normal((len(side.sentences), 64)), strict=True)
            )
        for source, target in split.gold.tolist():
            near = self.vectors[split.target.language][split.target.sentences[target]]
            self.vectors[split.source.language][split.source.sentences[source]] += 0.9 * near

    def encode(self, sentences: list[str], lang: str | None = None, *, show_progress: bool = False) -> np.ndarray:
        return normalize_rows(np.array([self.vectors[lang][sentence] for sentence in sentences], dtype=np.float32))


@pytest.fixture
def write_split(tmp_path: Path) -> Callable[..., Path]:
    """Write a split in the layout of the shared task: pairs among sentences without a translation."""

    def write(name: str, seed: int, pairs: int = 40, others: int = 60) -> Path:
        drawn = sentence_pairs(pairs + 2 * others, seed)
        # Both languages share names, which trigrams can find.
        named = [(f"{a} {n}", f"{b} {n}") for n, (a, b) in enumerate(drawn, start=1000 * (seed + 1))]
        sides = [pair[0] for pair in named[: pairs + others]], [pair[1] for pair in named[:pairs] + named[-others:]]
        ids = []
        for language, sentences in zip(("de", "en"), sides, strict=True):
            order = list(range(len(sentences)))
            random.Random(seed).shuffle(order)
            lines = [f"{language}-{row:09d}\t{sentences[row]}\n" for row in order]
            (tmp_path / f"de-en.{name}.{language}").write_text("".join(lines), encoding="utf-8")
            ids.append([f"{language}-{row:09d}" for row in range(pairs)])
        gold = tmp_path / f"de-en.{name}.gold"
        gold.write_text("".join(f"{a}\t{b}\n" for a, b in zip(*ids, strict=True)))
        return gold

    return write


def plain_result(
    split: bucc.Split, options: Bucc.Config, encoder: Trigrams | None = None
) -> tuple[dict[tuple[int, int], float], set]:
    encoder = encoder or Trigrams()
    x, y = (encoder.encode(side.sentences, side.language) for side in (split.source, split.target))
    found = plain_margins.pairs(x, y, options.neighbours, options.margin, options.retrieval)
    return found, set(map(tuple, split.gold.tolist()))


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_the_threshold_of_one_split_is_applied_to_the_other(
    write_split: Callable[..., Path], margin: str, retrieval: str
) -> None:
    tuning, test = (bucc.read_split(write_split(name, seed)) for seed, name in enumerate(("training", "test")))
    options = Bucc.Config(data="", margin=margin, retrieval=retrieval, neighbours=3)
    result, _ = bucc.measure(Trigrams(), test, tuning, options)
    threshold, _ = plain_margins.best_f1(*plain_result(tuning, options))
    assert result["threshold_from"] == "training" and result["threshold"] == pytest.approx(threshold, abs=2e-6)
    found, gold = plain_result(test, options)
    assert result["f1"] == pytest.approx(plain_margins.f1_at(found, gold, threshold))
    oracle, _ = bucc.measure(Trigrams(), test, None, replace(options, oracle=True))
    assert oracle["threshold_from"] == "oracle" and oracle["f1"] >= result["f1"]
    given, _ = bucc.measure(Trigrams(), test, None, replace(options, threshold=result["threshold"]))
    assert given == {**result, "threshold_from": "given"}


def test_a_given_threshold_and_the_oracle_exclude_each_other(write_split: Callable[..., Path]) -> None:
    folder = str(write_split("test", 0).parent)
    with pytest.raises(UserError, match="`oracle` and `threshold`; give one of them"):
        Bucc(Bucc.Config(data=folder, oracle=True, threshold=1.0)).read()


def test_the_reported_threshold_is_the_one_of_the_split_that_is_named(write_split: Callable[..., Path]) -> None:
    gold = [write_split(name, seed) for seed, name in enumerate(("training", "test"))]
    config = Bucc.Config(data=str(gold[0].parent), neighbours=3)
    threshold, _ = plain_margins.best_f1(*plain_result(bucc.read_split(gold[0]), config))
    values = measured(Bucc, Trigrams(), **vars(config)).values["de-en"]
    assert values["threshold_from"] == "training" and values["threshold"] == pytest.approx(threshold, abs=2e-6)
    best, f1 = plain_margins.best_f1(*plain_result(bucc.read_split(gold[1]), config))
    values = measured(Bucc, Trigrams(), **{**vars(config), "oracle": True}).values["de-en"]
    assert values["threshold_from"] == "oracle" and values["threshold"] == pytest.approx(best, abs=2e-6)
    assert values["f1"] == pytest.approx(f1)


def test_which_split_is_measured_and_which_one_is_tuned_on() -> None:
    options = Bucc.Config(data="")
    assert bucc.plan(["sample", "test", "training"], "de-en", options) == ("test", "training")
    assert bucc.plan(["dev", "test"], "de-en", options) == ("test", "dev")
    assert bucc.plan(["sample", "training"], "de-en", replace(options, split="training")) == ("training", "sample")
    assert bucc.plan(["dev"], "de-en", Bucc.Config(data="", oracle=True)) == ("dev", None)
    assert bucc.plan(["dev", "test"], "de-en", Bucc.Config(data="", threshold=1.0)) == ("test", None)
    with pytest.raises(UserError, match="de-en: there is no split but dev, so none to find a threshold in; give `thr"):
        bucc.plan(["dev"], "de-en", options)
    with pytest.raises(UserError, match="which split is measured is not clear; give `split` with one of dev training"):
        bucc.plan(["dev", "training"], "de-en", options)
    with pytest.raises(UserError, match="no split final; give `split` with one of dev"):
        bucc.plan(["dev"], "de-en", replace(options, split="final"))


def test_equal_sentences_count_once(tmp_path: Path) -> None:
    """The gold file may name any id of a sentence, and two gold pairs of equal sentences count once."""
    (tmp_path / "de-en.dev.de").write_text("d1\tHaus\n\nd2\tHof\nd3\tHaus\n")
    (tmp_path / "de-en.dev.en").write_text("e1\tyard\ne2\thouse\ne3\thouse\n")
    (tmp_path / "de-en.dev.gold").write_text("d3\te3\nd1\te2\n\nd2\te1\n")
    split = bucc.read_split(tmp_path / "de-en.dev.gold")
    assert (split.source.sentences, split.target.sentences) == (["Haus", "Hof"], ["yard", "house"])
    assert split.gold.tolist() == [[0, 1], [1, 0]]


def test_what_was_trained_on_is_counted_and_left_out(write_split: Callable[..., Path], tmp_path: Path) -> None:
    split = bucc.read_split(write_split("test", 0))
    first = split.gold[:7]
    known = [split.source.sentences[row] for row in first[:5, 0]] + [
        split.target.sentences[row] for row in first[5:, 1]
    ]
    hashes = tmp_path / "hashes.npy"
    np.save(hashes, np.unique(sentence_hashes(known)))
    same, overlap = bucc.leave_out_overlap(split, hashes, drop=False)
    assert same is split and (overlap.found, overlap.total) == (7, 40)
    kept, overlap = bucc.leave_out_overlap(split, hashes, drop=True)
    assert overlap.dropped and len(kept.gold) == 33
    for side, column, before in ((kept.source, 0, split.source), (kept.target, 1, split.target)):
        gone = {before.sentences[row] for row in first[:, column]}
        assert side.sentences == [sentence for sentence in before.sentences if sentence not in gone]
        assert [side.sentences[row] for row in kept.gold[:, column]] == [
            before.sentences[row] for row in split.gold[7:, column]
        ]
        assert all(side.sentences[row] == before.sentences[before.rows[name]] for name, row in side.rows.items())
    np.save(hashes, np.unique(sentence_hashes(split.source.sentences)))
    with pytest.raises(UserError, match="40 of 40 examples of de-en were in the training text, too few are left"):
        bucc.leave_out_overlap(split, hashes, drop=True)
    with pytest.raises(UserError, match="no training hashes"):
        bucc.leave_out_overlap(split, None, drop=True)


def test_a_sentence_of_two_gold_pairs_stays_for_the_one_that_stays(tmp_path: Path) -> None:
    sides = bucc.Side("de", ["Haus", "Hof"], {"d1": 0, "d2": 1}), bucc.Side("en", ["house", "home"], {"e1": 0, "e2": 1})
    split = bucc.Split("de-en", "test", *sides, np.array([[0, 0], [0, 1]]), ())
    np.save(tmp_path / "hashes.npy", sentence_hashes(["house"]))
    kept, _ = bucc.leave_out_overlap(split, tmp_path / "hashes.npy", drop=True)
    assert (kept.source.sentences, kept.target.sentences) == (["Haus", "Hof"], ["home"])
    assert kept.gold.tolist() == [[0, 0]]


BAD = {
    "gold": ("d1\te1\nd1\te9\n", "de-en.dev.gold:2: unknown id 'e9'; de-en.dev.en has no such id"),
    "de": ("d1\tHaus\n\nd1\tHof\n", "de-en.dev.de:3: the id 'd1' occurs twice; keep one of the lines"),
    "en": ("e1\thouse\ne2 yard\n", "de-en.dev.en:2: not of the form id<TAB>sentence; correct or remove the line"),
    "no gold": ("\n \n", "de-en.dev.gold: only empty lines; give a file with lines id<TAB>id"),
    "no en": (None, "de-en.dev.en: no such file; de-en.dev.gold needs the texts of both languages beside it"),
}


@pytest.mark.parametrize(("kind", "text", "message"), [(kind, *rest) for kind, rest in BAD.items()], ids=BAD)
def test_bad_files_are_named_with_their_line(tmp_path: Path, kind: str, text: str | None, message: str) -> None:
    files = {"de": "d1\tHaus\nd2\tHof\n", "en": "e1\thouse\ne2\tyard\n", "gold": "d1\te1\n"}
    for name, content in {**files, kind.removeprefix("no "): text}.items():
        if content is not None:
            (tmp_path / f"de-en.dev.{name}").write_text(content)
    with pytest.raises(UserError) as caught:
        bucc.read_split(tmp_path / "de-en.dev.gold")
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_the_command(write_split: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    gold = [write_split(name, seed) for seed, name in enumerate(("training", "test"))]
    checkpoint = write_encoder(tmp_path / "best")
    line = ["bucc", "--path", str(checkpoint), "--data", str(tmp_path), "--json", str(tmp_path / "out.json")]
    assert main(line) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == "languages split precision recall F1 extracted gold threshold found on".split()
    assert printed[2].split()[:2] == ["de-en", "test"] and printed[2].split()[-1] == "training"
    assert printed[-1].startswith("overlap: ")
    result = json.loads((tmp_path / "out.json").read_text())
    assert set(result["data"]) == {str(file.with_suffix(e)) for file in gold for e in (".de", ".en", ".gold")}
    assert result["values"]["de-en"]["threshold_from"] == "training" and "mean F1" in result["headline"]
    assert main([*line, "--oracle"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[2].split()[-1] == "oracle" and "mean F1 (oracle): " in printed
    assert "mean F1 (oracle)" in json.loads((tmp_path / "out.json").read_text())["headline"]
    refused = {
        ("--neighbours", "200"): "200 neighbours, but there are 100 sentences a side; lower --neighbours to 100",
        ("--langs", "fr-en"): "no BUCC files of fr-en; it holds de-en",
        ("--oracle", "--threshold", "1"): "--oracle and --threshold; give one of them",
    }
    for options, message in refused.items():
        assert main([*line, *options]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def smaller(split: bucc.Split, others: int) -> bucc.Split:
    """The test uses gold pairs and some other sentences, because the plain version takes minutes with all 13,000."""
    sides, columns = [], []
    for side, rows in zip((split.source, split.target), split.gold.T, strict=True):
        kept = np.unique(np.concatenate([rows, np.arange(others)]))
        sides.append(bucc.Side(side.language, [side.sentences[row] for row in kept], {}))
        columns.append(np.searchsorted(kept, rows))
    return replace(split, source=sides[0], target=sides[1], gold=np.stack(columns, axis=1))


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no real data: set XREP_DATA")
def test_the_sample_of_the_shared_task() -> None:
    split = bucc.read_split(bucc.select("all", SAMPLE)["zh-en"]["dev"])
    assert (len(split.source.rows), len(split.target.rows), len(split.gold)) == (8624, 13589, 257)
    split = smaller(split, 2500)
    encoder, options = Planted(split), Bucc.Config(data="", margin="ratio", oracle=True)
    result, _ = bucc.measure(encoder, split, None, options)
    threshold, f1 = plain_margins.best_f1(*plain_result(split, options, encoder))
    assert (
        40 < f1 < 95 and result["f1"] == pytest.approx(f1) and result["threshold"] == pytest.approx(threshold, abs=2e-6)
    )


@pytest.mark.slow
@pytest.mark.skipif(not NEWSTEST.is_dir(), reason="no real data: set XREP_DATA")
@pytest.mark.parametrize("margin", MARGINS)
def test_two_thousand_sentences_of_news(margin: str) -> None:
    sides = []
    for language in ("de", "en"):
        lines = (NEWSTEST / f"newstest2012.{language}").read_text(encoding="utf-8").splitlines()[:2000]
        sides.append(bucc.Side(language, lines, {}))
    gold = np.stack([np.arange(2000)] * 2, axis=1)
    split = bucc.Split("de-en", "test", *sides, gold, ())
    options = Bucc.Config(data="", margin=margin, oracle=True)
    result, _ = bucc.measure(Trigrams(), split, None, options)
    threshold, f1 = plain_margins.best_f1(*plain_result(split, options))
    assert f1 > 10 and result["f1"] == pytest.approx(f1)
    assert result["threshold"] == pytest.approx(threshold, abs=2e-6)
