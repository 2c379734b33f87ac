from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.evaluation.conftest import SCORED, NgramEncoder, measured, published, write
from xrep.errors import UserError
from xrep.evaluation import sts
from xrep.evaluation.sts import Sts, correlations, find_sets, select, similarities
from xrep.metrics.components import whiten


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write every data set in the layout of its publisher, with its known peculiarities."""
    root = tmp_path / "sts"
    year = root / "STS16-en-test"
    write(year / "STS.input.news.txt", [f"{a}\t{b}\thttp://a\thttp://b" for a, b, _ in SCORED[:4]])
    write(year / "STS.gs.news.txt", ["5", "", "2.250", "0"])  # the second pair is not scored
    write(year / "STS.input.qa.txt", [f"{a}\t{b}" for a, b, _ in SCORED[2:]])
    write(year / "STS.gs.qa.txt", [str(score) for *_, score in SCORED[2:]])
    write(year / "STS.input.ALL.txt", [f"{a}\t{b}" for a, b, _ in SCORED])
    write(year / "STS.gs.ALL.txt", [str(score) for *_, score in SCORED])
    rows = [f"main-news\tMSRvid\t2012test\t{i:04}\t{s}\t{a}\t{b}" for i, (a, b, s) in enumerate(SCORED)]
    rows[0] = rows[0].replace("A man", '"A man', 1) + "\tsource\tsource"  # an open quotation mark, and licences
    write(root / "STSBenchmark" / "sts-test.csv", rows)
    write(root / "STSBenchmark" / "sts-dev.csv", rows[:4])
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    rows = [f"{i}\t{a}\t{b}\t{s}\tNEUTRAL" for i, (a, b, s) in enumerate(SCORED)]
    write(root / "SICK" / "SICK_test_annotated.txt", [header, *rows], end="\r\n")
    write(root / "multi" / "stsb-de-test.csv", ['"Ein ""Hund"", sagt er.",Ein Hund.,4.5', "Eine Katze.,Ein Zug,0.0"])
    return root


def test_published_layouts_are_read(folder: Path) -> None:
    tests = {test.name: test for test in find_sets(folder)}
    assert list(tests) == ["SICK-R", "STS-B", "STS-B de", "STS16"]
    year = tests["STS16"]
    scores = [("news", 5.0), ("news", 2.25), ("news", 0.0), ("qa", 2.2), ("qa", 0.0), ("qa", 5.0), ("qa", 0.4)]
    assert [(subset, score) for score, subset in year.gold.tolist()] == scores
    assert year.columns[1][:3] == [SCORED[0][1], SCORED[2][1], SCORED[3][1]]
    assert (year.split, year.languages[0], len(year), len(year.files)) == ("test", "en", 7, 4)
    for name, first in (("SICK-R", SCORED[0][0]), ("STS-B", '"' + SCORED[0][0])):
        (one, other), gold = tests[name].columns, tests[name].gold
        assert (one[0], other[-1], gold.tolist()[-1]) == (first, SCORED[-1][1], (0.4, name))
    german = tests["STS-B de"]
    assert german.languages == ("de", "de") and german.columns[0][0] == 'Ein "Hund", sagt er.'
    assert [test.name for test in find_sets(folder / "SICK")] == ["SICK-R"]
    (dev,) = find_sets(folder, "dev")
    assert (dev.name, dev.split, len(dev)) == ("STS-B", "dev", 4)
    assert [test.name for test in select(list(tests.values()), "deu")] == ["STS-B de"]
    assert len(select(list(tests.values()), "all")) == 4
    with pytest.raises(UserError, match="no STS data for fr; the data has de,en"):
        select(list(tests.values()), "de,fr")


def test_files_of_2016_are_read_as_published(folder: Path) -> None:
    year = folder / "STS16-en-test"
    expected = find_sets(year)[0].columns
    for file in list(year.iterdir()):
        file.rename(file.with_name(file.name.replace("STS.", "STS2016.")))
    assert find_sets(year)[0].columns == expected


@pytest.mark.slow
def test_the_averages_are_each_what_their_name_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sts, "SEVEN", ("STS16", "STS-B", "SICK-R"))
    figures, tests = measured(Sts, NgramEncoder(), data=str(folder)), {test.name: test for test in find_sets(folder)}
    year = tests["STS16"]
    news, qa = (year.only(year.gold["subset"] == name) for name in ("news", "qa"))
    sides = [[NgramEncoder().encode(side).astype(float) for side in part.columns] for part in (news, qa)]
    scores = [(x * y).sum(axis=1) for x, y in sides]
    for name, function in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        one, other = (
            100 * function(s, part.gold["score"]).statistic for s, part in zip(scores, (news, qa), strict=True)
        )
        together = function(np.concatenate(scores), tests["STS16"].gold["score"]).statistic
        found = figures.values["tables"]["STS16"]["cosine"][name]
        assert found["subsets"] == pytest.approx({"news": one, "qa": other}, abs=1e-4)
        averages = {"all": 100 * together, "mean": (one + other) / 2, "wmean": (3 * one + 4 * other) / 7}
        assert {average: found[average] for average in averages} == pytest.approx(averages, abs=1e-4)
    assert len({round(value, 3) for value in averages.values()}) == 3
    # The average of the seven sets of the literature, here three, is given if all were measured.
    label = "average of 7, Spearman all"
    own = [figures.values["tables"][name]["cosine"]["spearman"] for name in sts.SEVEN]
    assert figures.headline[label] == pytest.approx(np.mean([each["all"] for each in own]))
    low, high = figures.intervals[label]
    assert low < figures.headline[label] < high
    assert figures.headline["STS16 test, Spearman all"] == own[0]["all"]
    assert label not in measured(Sts, NgramEncoder(), data=str(folder / "SICK")).headline
    rows = [line.split() for line in figures.text.splitlines()]
    averages = [f"{kind} {average}" for kind in ("spearman", "pearson") for average in ("all", "mean", "wmean")]
    assert rows[2] == " ".join(["test", "pairs", *averages]).split()
    assert ["STS16", "test", "7"] in [row[:3] for row in rows] and "spearman euclidean" in figures.text
    expected = [f"{np.mean([each[name] for each in own]):.2f}" for name in ("all", "mean", "wmean")]
    assert ["average", "of", "7", "19", *expected] in [row[:7] for row in rows]


def test_each_similarity_is_by_hand_on_vectors_as_the_model_gives_them(folder: Path) -> None:
    """Whitened vectors are those of all sentences of a test."""
    encoder, test = NgramEncoder(), find_sets(folder / "STSBenchmark")[0]
    x, y = (encoder.encode(side, "en", normalize=False).astype(float) for side in test.columns)
    by_hand = {"dot": (x * y).sum(1), "euclidean": -np.sqrt(((x - y) ** 2).sum(1)), "manhattan": -np.abs(x - y).sum(1)}
    found = correlations(test, similarities(encoder, test))
    for name, scores in by_hand.items():
        expected = 100 * stats.pearsonr(scores, test.gold["score"]).statistic
        assert found[name]["pearson"]["all"] == pytest.approx(expected, abs=1e-3)
    assert len({round(of["pearson"]["all"], 3) for of in found.values()}) == 4
    test = find_sets(str(folder))[-1]
    vectors = [encoder.encode(column, "en", normalize=False).astype(np.float64) for column in test.columns]
    first, second = np.split(whiten(np.concatenate(vectors), 3), 2)
    expected = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    np.testing.assert_allclose(similarities(encoder, test, 3)["cosine"], expected, atol=1e-6)


def test_what_is_no_result_or_wrong_in_a_file(folder: Path) -> None:
    collapsed = NgramEncoder()
    collapsed.encode = lambda sentences, *given, **options: np.ones((len(sentences), 4), np.float32)
    with pytest.raises(UserError, match="the cosine of all pairs of .* is equal"):
        measured(Sts, collapsed, data=str(folder))
    for file, lines, message in (
        ("STS16-en-test/STS.gs.qa.txt", "1 2", r"STS.gs.qa.txt:3: 2 lines, but .*STS.input.qa.txt has 4"),
        ("STS16-en-test/STS.gs.qa.txt", "1 2 nan 3", r"STS.gs.qa.txt:3: 'nan' is not a score"),
        ("STS16-en-test/STS.gs.qa.txt", "1 2 3 4", ""),
        ("copy/stsb-de-test.csv", "a,b,1.0 b,c,2.0", r"STS-B de is in .*, too"),
        ("multi/stsb-de-test.csv", "a,b,1.0 a,2.0", r"stsb-de-test.csv:2: 2 columns where 3 are needed"),
    ):
        write(folder / file, lines.split())
        with pytest.raises(UserError, match=message) if message else nullcontext():
            find_sets(folder)


@pytest.mark.slow
def test_the_published_files_are_read() -> None:
    folder = published("sts")
    tests = {test.name: test for test in find_sets(folder)}
    sizes = {name: len(test) for name, test in tests.items()}
    year = {"STS12": 3108, "STS13": 1500, "STS14": 3750}
    assert sizes == {"SICK-R": 4927, "STS-B": 1379, "STS-B de": 1379, "STS-B fr": 1379, "STS-B zh": 1379, **year}
    assert list(dict.fromkeys(tests["STS13"].gold["subset"])) == ["FNWN", "OnWN", "headlines"]
    for language in ("de", "fr", "zh"):
        np.testing.assert_array_equal(tests[f"STS-B {language}"].gold["score"], tests["STS-B"].gold["score"])
    train = {test.name: len(test) for test in find_sets(folder, "train")}
    assert (train["STS-B"], train["SICK-R"], train["STS-B zh"]) == (5749, 4500, 5749)
    assert {len(test) for test in find_sets(folder, "dev")} == {500, 1500}
