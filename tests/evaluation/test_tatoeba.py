from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from xrep.errors import UserError
from xrep.evaluation import tatoeba
from xrep.evaluation.overlap import Overlap
from xrep.metrics.retrieval import Accuracy


def _by_hand(encoder, folder: Path, code: str, language: str) -> Accuracy:
    """Compute the published protocol without our code."""
    sides = []
    for side, lang in ((code, language), ("eng", "en")):
        text = (folder / f"tatoeba.{code}-eng.{side}").read_text(encoding="utf-8")
        vectors = encoder.encode(text.rstrip("\n").split("\n"), lang)
        sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    similarity = sides[0] @ sides[1].T
    lines = np.arange(len(similarity))
    right = similarity.argmax(axis=1) == lines, similarity.argmax(axis=0) == lines
    return Accuracy(*(100 * float(direction.mean()) for direction in right))


def _pools(folder: Path, languages: str = "all") -> list[tatoeba.Pool]:
    return [tatoeba.read_pool(folder, code) for code in tatoeba.select(languages, folder)]


def test_the_averages_are_over_the_published_languages() -> None:
    groups = {group: set(languages) for group, languages in tatoeba.GROUPS.items()}
    assert groups["14"] == set("ar bg de el es fr hi ru sw th tr ur vi zh".split())
    assert groups["28"] == groups["36"] - set("jv ka kk ml sw ta te th".split())
    table_7 = (
        "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr ur vi zh"
    )
    assert groups["36"] == set(table_7.split())
    assert groups["11"] == set(
        "fr zh es de ru it tr pt hu ja nl".split()
    )  # fra cmn spa deu rus ita tur por hun jpn nld
    assert all(len(languages) == int(group) for group, languages in tatoeba.GROUPS.items())


def test_accuracy_is_that_of_the_protocol_by_hand(tatoeba_folder: Path, ngram_encoder) -> None:
    results = tatoeba.evaluate(ngram_encoder(), _pools(tatoeba_folder))
    assert results.pairs == {"zh": 4, "de": 6, "sw": 3}
    for code, language in (("cmn", "zh"), ("deu", "de"), ("swh", "sw")):
        assert results.accuracies[language] == _by_hand(ngram_encoder(), tatoeba_folder, code, language)
    assert results.accuracies["de"].mean > 60 > results.accuracies["zh"].mean
    means = [accuracy.mean for accuracy in results.accuracies.values()]
    assert results.mean.mean == pytest.approx(np.mean(means))  # the mean over languages
    assert results.overlap == Overlap(None, 13)


def test_a_pool_larger_than_one_tile_is_searched_whole(write_tatoeba: Callable, ngram_encoder) -> None:
    rows = [(f"Zimmer {i * 7919} im Hotel {i % 13}", f"room {i * 7919} of hotel {i % 11}") for i in range(1203)]
    folder = write_tatoeba({"deu": rows})
    measured = tatoeba.measure(ngram_encoder(), _pools(folder))["de"]
    assert measured == _by_hand(ngram_encoder(), folder, "deu", "de")
    assert 50 < measured.mean < 100


@pytest.mark.slow
def test_the_published_files_are_read_and_measured(published_tatoeba: Path, ngram_encoder) -> None:
    pools = _pools(published_tatoeba)
    assert len(pools) == 112
    assert sum(map(len, pools)) == 88877
    for group, languages in tatoeba.GROUPS.items():
        chosen = _pools(published_tatoeba, group)
        assert [pool.language for pool in chosen] == list(languages)
        if group == "28":
            assert {len(pool) for pool in chosen} == {1000}
    measured = tatoeba.measure(ngram_encoder(), _pools(published_tatoeba, "deu,fr,cmn"))
    for code, language in (("deu", "de"), ("fra", "fr"), ("cmn", "zh")):
        assert measured[language] == _by_hand(ngram_encoder(), published_tatoeba, code, language)
    assert measured["de"].mean > 10 > measured["zh"].mean


@pytest.mark.parametrize(
    ("languages", "codes"),
    [("all", ["cmn", "deu", "swh"]), ("de,zh", ["deu", "cmn"]), ("deu, cmn,de", ["deu", "cmn"]), ("SW", ["swh"])],
)
def test_languages_are_chosen_by_either_code(tatoeba_folder: Path, languages: str, codes: list[str]) -> None:
    assert tatoeba.select(languages, tatoeba_folder) == codes


def test_files_of_another_code_of_the_language_are_found(write_tatoeba: Callable) -> None:
    folder = write_tatoeba({"swa": [("Asante.", "Thanks."), ("Ndiyo.", "Yes.")]})
    assert tatoeba.select("sw", folder) == tatoeba.select("swh", folder) == ["swa"]


def test_an_average_is_given_only_when_all_its_languages_were_measured() -> None:
    every = {language: Accuracy(80.0 + i, 60.0 + i) for i, language in enumerate(tatoeba.GROUPS["36"])}
    results = tatoeba.Results(every, dict.fromkeys(every, 1000), Overlap(0, 36000))
    assert set(results.averages) == {"11", "14", "28", "36"}
    assert results.averages["36"].forward == pytest.approx(80 + 35 / 2)
    assert results.averages["11"].backward == pytest.approx(
        np.mean([every[language].backward for language in "fr zh es de ru it tr pt hu ja nl".split()])
    )
    without = {language: accuracy for language, accuracy in every.items() if language not in ("sw", "fr")}
    results = tatoeba.Results(without, dict.fromkeys(without, 1000), Overlap(0, 34000))
    assert results.averages == {}
    assert (results.missing("14"), results.missing("28")) == (["fr", "sw"], ["fr"])


def _break(folder: Path, how: str) -> str:
    """Damage the folder and return the --langs to give."""
    german = folder / "tatoeba.deu-eng.deu"
    if how == "missing half":
        (folder / "tatoeba.deu-eng.eng").unlink()
    elif how == "missing lines":
        german.write_text("Wir trinken Wasser.\n" * 4, encoding="utf-8")
    elif how == "encoding":
        german.write_bytes(german.read_bytes().replace("ä".encode(), b"\xe4"))
    elif how == "empty":
        german.write_bytes(b"")
    elif how == "two codes":
        for side in ("ger", "eng"):
            (folder / f"tatoeba.ger-eng.{side}").write_text("a\nb\n")
    return {"absent": "deu,fra", "none": " , ", "group": "11"}.get(how, "de")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing half", r"tatoeba.deu-eng.eng: no such file"),
        ("missing lines", r"tatoeba.deu-eng.deu:5: 4 lines, but tatoeba.deu-eng.eng has 6; "),
        ("encoding", r"tatoeba.deu-eng.deu:4: .*UTF-8"),
        ("empty", r"tatoeba.deu-eng.deu: .*empty"),
        ("two codes", r"deu and ger are one language"),
        ("absent", r"no Tatoeba files for fr; it holds de sw zh"),
        ("group", r"no Tatoeba files for fr es ru it tr pt hu ja nl; it holds"),
        ("none", r"no language named; give --langs"),
    ],
)
def test_bad_data_is_one_clear_line(tatoeba_folder: Path, how: str, message: str) -> None:
    languages = _break(tatoeba_folder, how)
    with pytest.raises(UserError, match=message) as error:
        _pools(tatoeba_folder, languages)
    assert "\n" not in str(error.value)


def test_a_folder_without_the_test_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file tatoeba"):
        tatoeba.select("all", tmp_path)
    with pytest.raises(UserError, match="absent: no such folder"):
        tatoeba.select("all", tmp_path / "absent")


def test_an_encoder_without_a_tower_says_so_before_the_work(tatoeba_folder: Path, ngram_encoder) -> None:
    kept = []
    with pytest.raises(UserError, match=r"cannot encode zh sw \(.*no tower.*\); give --langs de$"):
        tatoeba.evaluate(ngram_encoder(known=["de", "en"]), _pools(tatoeba_folder), keep=lambda *a: kept.append(a))
    with pytest.raises(UserError, match="cannot encode en .*name another encoder"):
        tatoeba.evaluate(ngram_encoder(known=["de", "zh", "sw"]), _pools(tatoeba_folder))
    assert not kept
    assert set(tatoeba.evaluate(ngram_encoder(known=["de", "en"]), _pools(tatoeba_folder, "de")).pairs) == {"de"}


def _published_formula(x: np.ndarray, count: int) -> np.ndarray:
    """Return v - (v.c)c for the first right singular vectors c of the uncentred matrix, in float64."""
    x = x.astype(np.float64)
    for component in np.linalg.svd(x, full_matrices=False)[2][:count]:
        x = x - np.outer(x @ component, component)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("margin", ["absolute", "distance", "ratio"])
def test_components_and_margins_are_those_of_the_formulas(tatoeba_folder: Path, ngram_encoder, margin: str) -> None:
    kept = {}
    pools, scoring = _pools(tatoeba_folder), tatoeba.Scoring(margin, neighbours=2, remove_components=1)
    results = tatoeba.evaluate(
        ngram_encoder(), pools, scoring, keep=lambda pool, *sides: kept.update({pool.code: sides})
    )
    for pool in pools:
        sides = [ngram_encoder().encode(side, "x") for side in (pool.sentences, pool.english)]
        x, y = (_published_formula(side, 1) for side in sides)
        np.testing.assert_allclose(kept[pool.code], [x, y], atol=1e-5)
        cosine = x @ y.T
        near = [np.sort(cosine, axis=axis).take([-1, -2], axis=axis).mean(axis=axis) for axis in (1, 0)]
        around = (near[0][:, None] + near[1]) / 2
        scores = {"absolute": cosine, "distance": cosine - around, "ratio": cosine / around}[margin]
        right = [(scores.argmax(axis=axis) == np.arange(len(x))).mean() * 100 for axis in (1, 0)]
        assert results.accuracies[pool.language] == Accuracy(*right)


@pytest.mark.parametrize(
    ("scoring", "message"),
    [
        (tatoeba.Scoring("ratio", neighbours=4), "--neighbours 4, but 3 pairs of swh; give a smaller number"),
        (tatoeba.Scoring(remove_components=3), "--remove-components 3, but 3 pairs of swh"),
        (tatoeba.Scoring(remove_components=-1), "--remove-components -1; give 0 or more"),
        (tatoeba.Scoring(neighbours=0), "--neighbours 0; give at least 1"),
    ],
)
def test_numbers_too_large_for_the_data_are_one_clear_line(
    tatoeba_folder: Path, ngram_encoder, scoring: tatoeba.Scoring, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        tatoeba.measure(ngram_encoder(), _pools(tatoeba_folder), scoring)
