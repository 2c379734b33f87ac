from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.evaluation.conftest import measured
from xrep.errors import UserError
from xrep.evaluation import sts
from xrep.evaluation.overlap import Overlap
from xrep.evaluation.sts import Sts, measure, select, similarities
from xrep.evaluation.sts_sets import Subset, find_sets
from xrep.metrics.components import whiten
from xrep.text.cleaning import sentence_hashes

PAIRS = [
    ("A man is playing a guitar.", "A man plays the guitar.", 4.8),
    ("A dog runs in the snow.", "A dog is running through snow.", 4.6),
    ("A woman slices an onion.", "A woman is cutting potatoes.", 2.2),
    ("Two boys swim in a lake.", "Stocks fell on Monday.", 0.0),
    ("The plane takes off.", "A plane is taking off.", 5.0),
    ("A cat sleeps.", "A man rides a horse.", 0.4),
]


def _write(path: Path, lines: list[str], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + end for line in lines), encoding="utf-8", newline="")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write every data set in the layout of its publisher, with its known peculiarities."""
    root = tmp_path / "sts"
    year = root / "STS16-en-test"
    _write(year / "STS.input.news.txt", [f"{a}\t{b}\thttp://a\thttp://b" for a, b, _ in PAIRS[:4]])
    _write(year / "STS.gs.news.txt", ["5", "", "2.250", "0"])  # the second pair is not scored
    _write(year / "STS.input.qa.txt", [f"{a}\t{b}" for a, b, _ in PAIRS[2:]])
    _write(year / "STS.gs.qa.txt", [str(score) for *_, score in PAIRS[2:]])
    _write(year / "STS.input.ALL.txt", [f"{a}\t{b}" for a, b, _ in PAIRS])
    _write(year / "STS.gs.ALL.txt", [str(score) for *_, score in PAIRS])
    rows = [f"main-news\tMSRvid\t2012test\t{i:04}\t{s}\t{a}\t{b}" for i, (a, b, s) in enumerate(PAIRS)]
    rows[0] = rows[0].replace("A man", '"A man', 1) + "\tsource\tsource"  # an open quotation mark, and licences
    _write(root / "STSBenchmark" / "sts-test.csv", rows)
    _write(root / "STSBenchmark" / "sts-dev.csv", rows[:4])
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    rows = [f"{i}\t{a}\t{b}\t{s}\tNEUTRAL" for i, (a, b, s) in enumerate(PAIRS)]
    _write(root / "SICK" / "SICK_test_annotated.txt", [header, *rows], end="\r\n")
    _write(root / "multi" / "stsb-de-test.csv", ['"Ein ""Hund"", sagt er.",Ein Hund.,4.5', "Eine Katze.,Ein Zug,0.0"])
    return root


def test_published_layouts_are_read(folder: Path) -> None:
    tests = {test.name: test for test in find_sets(folder)}
    assert list(tests) == ["SICK-R", "STS-B", "STS-B de", "STS16"]
    year = tests["STS16"]
    assert [(subset.name, subset.gold.tolist()) for subset in year.subsets] == [
        ("news", [5.0, 2.25, 0.0]),
        ("qa", [2.2, 0.0, 5.0, 0.4]),
    ]
    assert year.subsets[0].second == [PAIRS[0][1], PAIRS[2][1], PAIRS[3][1]]
    assert (year.split, year.language, len(year), len(year.files)) == ("test", "en", 7, 4)
    for name, first in (("SICK-R", PAIRS[0][0]), ("STS-B", '"' + PAIRS[0][0])):
        (subset,) = tests[name].subsets
        assert (subset.first[0], subset.second[-1], subset.gold[-1]) == (first, PAIRS[-1][1], 0.4)
    german = tests["STS-B de"]
    assert german.language == "de" and german.subsets[0].first[0] == 'Ein "Hund", sagt er.'
    assert [test.name for test in find_sets(folder / "SICK")] == ["SICK-R"]
    (dev,) = find_sets(folder, "dev")
    assert (dev.name, dev.split, len(dev)) == ("STS-B", "dev", 4)


def _by_hand(encoder, subset: Subset, lang: str = "en") -> np.ndarray:
    x, y = (encoder.encode(side, lang).astype(np.float64) for side in (subset.first, subset.second))
    return (x * y).sum(axis=1)


def test_the_three_averages_are_each_what_their_name_says(folder: Path, ngram_encoder) -> None:
    tests = {test.name: test for test in find_sets(folder)}
    news, qa = tests["STS16"].subsets
    scores = [_by_hand(ngram_encoder(), subset) for subset in (news, qa)]
    values = measured(Sts, ngram_encoder(), data=str(folder)).values
    for name, function in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        one, other = (100 * function(s, part.gold).statistic for s, part in zip(scores, (news, qa), strict=True))
        together = function(np.concatenate(scores), np.concatenate([news.gold, qa.gold])).statistic
        found = values["STS16"]["cosine"][name]
        assert found["subsets"] == pytest.approx({"news": one, "qa": other}, abs=1e-4)
        assert found["all"] == pytest.approx(100 * together, abs=1e-4)
        assert found["mean"] == pytest.approx((one + other) / 2, abs=1e-4)
        assert found["wmean"] == pytest.approx((3 * one + 4 * other) / 7, abs=1e-4)
    pearson = values["STS16"]["cosine"]["pearson"]
    assert len({round(pearson[average], 3) for average in ("all", "mean", "wmean")}) == 3


def test_the_average_of_seven_is_given_if_all_were_measured(
    folder: Path, ngram_encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "average of 7, Spearman all"
    assert label not in measured(Sts, ngram_encoder(), data=str(folder)).headline
    monkeypatch.setattr(sts, "SEVEN", ("STS16", "STS-B", "SICK-R"))
    figures = measured(Sts, ngram_encoder(), data=str(folder))
    own = [figures.values[name]["cosine"]["spearman"] for name in sts.SEVEN]
    assert figures.headline[label] == pytest.approx(np.mean([each["all"] for each in own]))
    low, high = figures.intervals[label]
    assert low < figures.headline[label] < high
    last = figures.text.splitlines()[-1]
    assert last == f"{label}: {figures.headline[label]:.2f} (wmean: {np.mean([each['wmean'] for each in own]):.2f})"


def test_each_similarity_is_measured_on_vectors_as_the_model_gives_them(folder: Path, ngram_encoder) -> None:
    encoder, test = ngram_encoder(), find_sets(folder / "STSBenchmark")[0]
    subset = test.subsets[0]
    x, y = (encoder.encode(side, "en", normalize=False) for side in (subset.first, subset.second))
    by_hand = {
        "dot": [float(u @ v) for u, v in zip(x, y, strict=True)],
        "euclidean": [-float(np.sqrt(((u - v) ** 2).sum())) for u, v in zip(x, y, strict=True)],
        "manhattan": [-float(np.abs(u - v).sum()) for u, v in zip(x, y, strict=True)],
    }
    found = measure(encoder, test)
    for name, scores in by_hand.items():
        expected = 100 * stats.pearsonr(scores, subset.gold).statistic
        assert found[name]["pearson"].all == pytest.approx(expected, abs=1e-3)
    assert len({round(of["pearson"].all, 3) for of in found.values()}) == 4


def test_whitened_vectors_of_all_sentences_of_a_test(folder: Path, ngram_encoder) -> None:
    (test, *_), encoder = find_sets(str(folder), "test"), ngram_encoder()
    columns = [column for subset in test.subsets for column in (subset.first, subset.second)]
    vectors = [encoder.encode(column, "en", normalize=False).astype(np.float64) for column in columns]
    white = np.split(whiten(np.concatenate(vectors), 3), np.cumsum([len(column) for column in columns])[:-1])
    found = similarities(encoder, test, 3)["cosine"]
    for first, second, own in zip(white[::2], white[1::2], found, strict=True):
        expected = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        np.testing.assert_allclose(own, expected, atol=1e-6)
    with pytest.raises(UserError, match="`whiten` -1; give 0 or more"):
        measured(Sts, encoder, data=str(folder), whiten=-1)


def test_the_table_names_test_split_and_averages(folder: Path, ngram_encoder) -> None:
    figures = measured(Sts, ngram_encoder(), data=str(folder))
    text = figures.printed()
    assert "spearman all  spearman mean  spearman wmean  pearson all  pearson mean  pearson wmean" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["STS16", "test", "7"] in [row[:3] for row in rows] and ["news", "3"] in [row[:2] for row in rows]
    assert "spearman euclidean" in text
    assert text.splitlines()[-1] == "overlap: unknown (no training hashes beside the encoder)"
    values = figures.values
    assert values["STS16"]["cosine"]["spearman"]["subsets"].keys() == {"news", "qa"}
    assert figures.headline["STS16 test, Spearman all"] == values["STS16"]["cosine"]["spearman"]["all"]


def test_pairs_that_were_trained_on_are_counted_and_left_out(folder: Path, ngram_encoder, tmp_path: Path) -> None:
    hashes = tmp_path / "hashes.npy"
    np.save(hashes, np.unique(sentence_hashes(["a plane is TAKING off", "A cat sleeps"])))
    encoder, tests = ngram_encoder(training_hashes=hashes), find_sets(folder / "STSBenchmark")
    data = str(folder / "STSBenchmark")
    figures = measured(Sts, encoder, data=data, drop_overlap=True)
    assert figures.overlap == Overlap(2, 6, dropped=True) and figures.values["STS-B"]["pairs"] == 4
    cut = tests[0].subsets[0].only(np.array([1, 1, 1, 1, 0, 0], bool))
    expected = stats.spearmanr(_by_hand(encoder, cut), cut.gold).statistic
    assert figures.values["STS-B"]["cosine"]["spearman"]["all"] == pytest.approx(100 * expected)
    assert measured(Sts, encoder, data=str(folder)).overlap.found == 2 + 2 + 2
    np.save(hashes, np.unique(sentence_hashes([first for first, *_ in PAIRS[1:]])))
    with pytest.raises(UserError, match=r"5 of 6 examples of STS-B were in the training text, too few are left"):
        measured(Sts, encoder, data=data, drop_overlap=True)


def test_languages_are_chosen_by_either_code(folder: Path, ngram_encoder) -> None:
    tests = find_sets(folder)
    assert [test.name for test in select(tests, "deu")] == ["STS-B de"]
    assert len(select(tests, "all")) == 4
    with pytest.raises(UserError, match="no STS data for fr; the data has de,en"):
        select(tests, "de,fr")
    with pytest.raises(UserError, match="cannot encode de .*name another encoder"):
        measured(Sts, ngram_encoder(known=["en"]), data=str(folder))


def test_a_collapsed_encoder_is_no_result(folder: Path, ngram_encoder) -> None:
    class Collapsed(ngram_encoder):
        def encode(self, sentences, lang=None, **options) -> np.ndarray:
            return np.ones((len(sentences), 4), np.float32)

    with pytest.raises(UserError, match="all similarities of .* are equal"):
        measured(Sts, Collapsed(), data=str(folder))


def _break(root: Path, how: str) -> None:
    year, benchmark = root / "STS16-en-test", root / "STSBenchmark" / "sts-test.csv"
    if how == "no gold":
        (year / "STS.gs.qa.txt").unlink()
    elif how == "short gold":
        _write(year / "STS.gs.qa.txt", ["1", "2"])
    elif how == "no number":
        _write(year / "STS.gs.qa.txt", ["1", "2", "high", "3"])
    elif how == "nan":
        _write(year / "STS.gs.qa.txt", ["1", "2", "nan", "3"])
    elif how == "no tab":
        _write(year / "STS.input.qa.txt", ["one", "two", "three", "four"])
    elif how == "no year":
        year.rename(root / "semeval")
    elif how == "columns":
        _write(benchmark, ["main-news\tMSRvid\t2012test\t0001\t4.0\tonly one sentence"])
    elif how == "header":
        _write(root / "SICK" / "SICK_test_annotated.txt", ["1\ta\tb\t3.0", "2\tc\td\t4.0"])
    elif how == "csv":
        _write(root / "multi" / "stsb-de-test.csv", ["a,b,1.0", "a,b,c,2.0"])
    elif how == "quote":
        _write(root / "multi" / "stsb-de-test.csv", ["a,b,1.0", '"a"b,c,2.0'])
    elif how == "twice":
        _write(root / "copy" / "sts-test.csv", benchmark.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no gold", r"STS.gs.qa.txt: no such file"),
        ("short gold", r"STS.gs.qa.txt:3: 2 lines, but STS.input.qa.txt has 4"),
        ("no number", r"STS.gs.qa.txt:3: 'high' is not a score"),
        ("nan", r"STS.gs.qa.txt:3: 'nan' is not a score"),
        ("no tab", r"STS.input.qa.txt:1: 1 columns where 2 are needed"),
        ("no year", r"semeval: the name of the folder has no year"),
        ("columns", r"sts-test.csv:1: 6 columns where 7 are needed"),
        ("header", r"SICK_test_annotated.txt:1: no column sentence_A"),
        ("csv", r"stsb-de-test.csv:2: 4 columns, not 3"),
        ("quote", r"stsb-de-test.csv:2: .*expected after"),
        ("twice", r"copy: STS-B is in .*STSBenchmark, too|STSBenchmark: STS-B is in .*copy, too"),
    ],
)
def test_bad_data_is_one_clear_line(folder: Path, how: str, message: str) -> None:
    _break(folder, how)
    with pytest.raises(UserError, match=message) as error:
        find_sets(folder)
    assert "\n" not in str(error.value)


def test_a_folder_without_the_data_is_one_clear_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: no such folder"):
        find_sets(tmp_path / "absent")
    with pytest.raises(UserError, match="no STS data set with a train split"):
        find_sets(folder, "train")


def test_the_published_files_are_read(published_sts: Path) -> None:
    tests = {test.name: test for test in find_sets(published_sts)}
    sizes = {name: len(test) for name, test in tests.items()}
    year = {"STS12": 3108, "STS13": 1500, "STS14": 3750}
    assert sizes == {"SICK-R": 4927, "STS-B": 1379, "STS-B de": 1379, "STS-B fr": 1379, "STS-B zh": 1379, **year}
    assert [subset.name for subset in tests["STS13"].subsets] == ["FNWN", "OnWN", "headlines"]
    gold = tests["STS-B"].subsets[0].gold
    for language in ("de", "fr", "zh"):
        np.testing.assert_array_equal(tests[f"STS-B {language}"].subsets[0].gold, gold)
    train = {test.name: len(test) for test in find_sets(published_sts, "train")}
    assert (train["STS-B"], train["SICK-R"], train["STS-B zh"]) == (5749, 4500, 5749)
    assert {len(test) for test in find_sets(published_sts, "dev")} == {500, 1500}
