"""``xrep-score`` against the definition of its scores, in every format, by several processes, and after a kill."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.retrieval import plain_margins
from tests.support.commands import Commands, Result
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.programs import Program, run_on_ranks
from tests.support.runs import environment
from tests.text.test_formats import FORMATS
from xrep.inference.scoring import estimated
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.vectors import normalize_rows
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext
from xrep.text.records import read_records

PAIRS = sentence_pairs(90)
# Repeated sentences and pairs, one that is misaligned, and three that rules drop.
TEXT = [*PAIRS[:50], PAIRS[3], (PAIRS[4][0], PAIRS[5][1]), ("", "x"), ("Wie bitte", "wie bitte!"), ("a", "b " * 20)]
TRUSTED, MORE = PAIRS[50:70], PAIRS[70:]
GIVEN = "--bitext de-en=text.tsv:1,2 --output scored.tsv"
Row = tuple[float, float, str, str]


@pytest.fixture
def score(cli: Commands, shared_encoder: Path) -> Callable[[str], Result]:
    for name, pairs in (("text", TEXT), ("trusted", TRUSTED)):
        write_lines(cli.folder / f"{name}.tsv", ["\t".join(pair) for pair in pairs])
    for side, code in enumerate(("de", "en")):
        write_lines(cli.folder / f"more.{code}", [pair[side] for pair in MORE])
    return lambda options: cli("score", "--path", shared_encoder, "--device", "cpu", *options.split())


def rows_of(path: Path) -> list[Row]:
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(float(one), float(cosine), source, target) for one, cosine, source, target in lines]


def expected(encoder: Path, text: list[tuple[str, str]], others: list[tuple[str, str]], margin: str) -> list[Row]:
    """Return the rows of a text whose neighbours are among its different sentences and those of ``others``."""
    sides = [list(dict.fromkeys(side)) for side in zip(*text, *others, strict=True)]
    vectors = [SentenceEncoder.load(encoder, device="cpu").encode(side).astype(np.float16) for side in sides]
    x, y = (normalize_rows(some.astype(np.float64)) for some in vectors)
    scores, cosines = (plain_margins.scores(x, y, 4, kind) for kind in (margin, "absolute"))
    places = [(sides[0].index(source), sides[1].index(target)) for source, target in text]
    return [(scores[place], cosines[place], *pair) for place, pair in zip(places, text, strict=True)]


def check_rows(found: list[Row], wanted: list[Row]) -> None:
    assert [row[2:] for row in found] == [row[2:] for row in wanted]
    np.testing.assert_allclose([row[:2] for row in found], [row[:2] for row in wanted], atol=3e-6)


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_scores_are_those_of_the_definition(margin, score, shared_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.inference.scoring._BLOCK", 7)
    done = score(f"{GIVEN} --margin {margin} --json summary.json")
    assert done.out == "52 of 55 pairs; left out by rules: 1 empty, 1 identical, 1 length ratio: scored.tsv\n"
    wanted = expected(shared_encoder, TEXT[:52], [], margin)
    check_rows(rows_of(tmp_path / "scored.tsv"), wanted)
    assert sum(json.loads((tmp_path / "summary.json").read_text())["histogram"]["text"]) == 52
    order = sorted((row[0] for row in wanted), reverse=True)
    score(f"{GIVEN} --margin {margin} --keep 0.6")  # of all 55
    check_rows(rows_of(tmp_path / "scored.tsv"), [row for row in wanted if row[0] >= order[32] - 1e-6])
    among = score(f"{GIVEN} --margin {margin} --keep 1 --background de=more.de,en=more.en")
    if margin == "absolute":
        assert "the margin absolute has none; leave it out" in among.err
    else:
        check_rows(rows_of(tmp_path / "scored.tsv"), expected(shared_encoder, TEXT[:52], MORE, margin))
    score(f"{GIVEN} --margin {margin} --threshold {order[20] - 1e-5}")
    check_rows(rows_of(tmp_path / "scored.tsv"), [row for row in wanted if row[0] >= order[20] - 1e-5])


@pytest.mark.parametrize("least_precision", [None, 0.75])
def test_trusted_pairs_choose_the_threshold(least_precision, score, shared_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.inference.scoring._BLOCK", 7)
    more = f"--least-precision {least_precision}" if least_precision else ""
    write_lines(tmp_path / "trusted.tsv", [f"{one}\t{other}\n\t" for one, other in TRUSTED])  # with empty lines between
    done = score(f"{GIVEN} --trusted de-en=trusted.tsv:1,2 --json summary.json {more}")
    said = json.loads((tmp_path / "summary.json").read_text())
    shifted = [(one[0], other[1]) for one, other in zip(TRUSTED, [*TRUSTED[1:], TRUSTED[0]], strict=True)]
    wrong = [pair for pair in shifted if pair not in TRUSTED]
    rows = expected(shared_encoder, [*TEXT[:52], *TRUSTED, *wrong], [], "ratio")
    right, planted = ([row[0] for row in some] for some in (rows[52:72], rows[72:]))
    best = (-1.0, 0.0, 0.0, 0.0)
    for threshold in sorted([*right, *planted], reverse=True):
        hits, count = (sum(value >= threshold - 1e-6 for value in some) for some in (right, [*right, *planted]))
        is_precise = not least_precision or hits / count >= least_precision
        merit = (hits if least_precision else 2 * hits / (20 + count)) if is_precise else -1
        best = max(best, (merit, threshold, hits / count, hits / 20), key=lambda tried: tried[0])
    _, threshold, precision, recall = best
    assert said["trusted"]["precision"] == pytest.approx(100 * precision)
    assert said["trusted"]["recall"] == pytest.approx(100 * recall)
    kept = [row for row in rows[:52] if row[0] >= threshold - 1e-6]
    check_rows(rows_of(tmp_path / "scored.tsv"), kept)
    fallout, share = sum(value >= threshold - 1e-6 for value in planted) / len(planted), len(kept) / 52
    share_right = min(1, max(0, (share - fallout) / (recall - fallout)))
    assert said["trusted"]["estimated_right"] == pytest.approx(100 * share_right)
    assert f"keeps {100 * recall:.1f}% of the right ones, and {100 * precision:.1f}% of what it keeps" in done.out
    assert [sum(said["histogram"][name]) for name in ("right", "wrong")] == [20, len(planted)]


def test_a_precision_that_no_threshold_has(score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target of the next pair is the source itself, so all wrong pairs are better. Vectors and scores are kept."""
    shifted = zip(TRUSTED, PAIRS[49:69], strict=True)
    write_lines(tmp_path / "trusted.tsv", [f"{source}\t{other}" for (source, _), (other, _) in shifted])
    trusted = f"{GIVEN} --trusted de-en=trusted.tsv"
    refused = score(f"{trusted} --least-precision 1")
    assert refused.code == 2 and "what is done is in" in refused.err, refused.err
    monkeypatch.setattr("xrep.inference.scoring.ScorePairs.run", None)
    again = score(f"{trusted} --least-precision 0.01")
    assert again.code == 0 and not (tmp_path / "scored.tsv.job").exists(), again.err


def test_what_is_no_language_is_named_as_it_is_written(score: Callable[[str], Result]) -> None:
    done = score("--bitext de-xx=text.tsv:1,2 --output out.tsv")
    assert done.code == 2 and "error: `de-xx=text.tsv:1,2` 'xx' is no language code; give one such as" in done.err


def test_what_is_estimated_agrees_with_itself() -> None:
    """A threshold that keeps more of the text than of right pairs says that all of the text is right; or nothing, if
    the difference is not by chance."""
    assert estimated(kept=0.6, recall=0.9, fallout=0.1, count=50) == pytest.approx((0.625, 0.625 * 0.9 / 0.6))
    assert estimated(kept=0.075, recall=0.029, fallout=0.0, count=100) == (1.0, 1.0)
    assert estimated(kept=0.05, recall=0.9, fallout=0.1, count=50) == (0.0, 0.0)
    assert estimated(kept=0.43, recall=0.018, fallout=0.0, count=60) is None


def test_too_few_trusted_pairs_that_count(score, tmp_path: Path) -> None:
    """One target for all sources makes no wrong pair, and pairs without a target do not count."""
    for pairs, problem in (
        ([(one, TRUSTED[0][1]) for one, _ in TRUSTED], "20 trusted pairs and 0 wrong ones that are made of them"),
        ([*TRUSTED[:9], *((one, "") for one, _ in TRUSTED[9:])], "9 trusted pairs and 9 wrong ones"),
    ):
        write_lines(tmp_path / "trusted.tsv", map("\t".join, pairs))
        refused = score(f"{GIVEN} --trusted de-en=trusted.tsv")
        assert refused.code == 2 and f"trusted.tsv: {problem}" in refused.err, refused.err
        assert not (tmp_path / "scored.tsv").exists()


@pytest.mark.parametrize("given", ["a.tmx", "a.xlf", "a.jsonl", "a.csv", "de-en.txt.zip", "a.parquet"])
def test_formats_in_and_out(given: str, score: Callable[[str], Result], tmp_path: Path) -> None:
    pairs = [*PAIRS[:20], ('Er sagte: "Hm & na, ja"', 'He said: "Hm & <well>, yes"')]
    (tmp_path / given).write_bytes(FORMATS[given](pairs))
    output = f"out.{given[2:]}" if given in ("a.tmx", "a.jsonl", "a.parquet") else "out.tsv"
    assert score(f"--bitext de-en={given} --output {output}").code == 0
    columns = ":3,4" if output == "out.tsv" else ""
    written = read_pairs(parse_bitext(f"de-en={tmp_path / output}{columns}"))
    assert [(source, target) for _, source, target in written] == pairs
    if output in ("out.jsonl", "out.parquet"):
        records = [record for _, record in read_records(tmp_path / output)]
        assert len(records) == len(pairs) and all(0 < record["score"] < 2 for record in records)
    else:
        text = (tmp_path / output).read_text(encoding="utf-8")
        assert text.count("score") == (0 if output == "out.tsv" else len(pairs))


@pytest.mark.slow
def test_processes_share_the_work_and_one_goes_on_after_a_kill(score, shared_encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "text.tsv", [f"{one} {n}\t{other} {n}" for n in range(150) for one, other in PAIRS])
    given = ["--path", shared_encoder, "--device", "cpu", *GIVEN.split(), "--trusted", "de-en=trusted.tsv:1,2"]
    assert run_on_ranks(3, "xrep_cli.score", *given, environment=environment()).returncode == 0
    shared = (tmp_path / "scored.tsv").read_bytes()
    again = run_on_ranks(2, "xrep_cli.score", *given, "--json", "x.json", environment=environment())
    assert "or has written it; --json will not be written by this process\n" in again.stderr
    for name in ("scored.tsv", "scored.tsv.job/finished.json", "scored.tsv.job/lock"):
        (tmp_path / name).unlink()
    program = Program("xrep_cli.score", given, environment())
    while program.poll() is None and not list(tmp_path.glob("scored.tsv.job/done/encode-*/*")):
        time.sleep(0.01)
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert (tmp_path / "scored.tsv.job").exists() and not (tmp_path / "scored.tsv").exists()
    assert score(" ".join(map(str, given[4:]))).code == 0
    assert (tmp_path / "scored.tsv").read_bytes() == shared and not (tmp_path / "scored.tsv.job").exists()
    assert sorted(os.listdir(tmp_path)) == ["more.de", "more.en", "scored.tsv", "text.tsv", "trusted.tsv"]
