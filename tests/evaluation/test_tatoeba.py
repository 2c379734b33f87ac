from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import measured
from xrep.errors import UserError
from xrep.evaluation import tatoeba
from xrep.evaluation.evaluation import Figures
from xrep.evaluation.overlap import Overlap
from xrep.evaluation.tatoeba import Tatoeba
from xrep.metrics.components import whiten
from xrep.metrics.retrieval import Accuracy
from xrep.retrieval.neighbours import normalize_rows
from xrep_cli.eval import main


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


def _accuracy(figures: Figures, language: str) -> Accuracy:
    found = figures.values["languages"][language]
    return Accuracy(found["xx-en"], found["en-xx"])


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
    figures = measured(Tatoeba, ngram_encoder(), data=str(tatoeba_folder))
    found = figures.values["languages"]
    assert {language: own["pairs"] for language, own in found.items()} == {"zh": 4, "de": 6, "sw": 3}
    for code, language in (("cmn", "zh"), ("deu", "de"), ("swh", "sw")):
        assert _accuracy(figures, language) == _by_hand(ngram_encoder(), tatoeba_folder, code, language)
    assert found["de"]["mean"] > 60 > found["zh"]["mean"]
    means = [own["mean"] for own in found.values()]
    assert figures.values["mean"] == pytest.approx(np.mean(means))  # over languages, however many pairs each has
    assert figures.overlap == Overlap(None, 13)


def test_a_pool_larger_than_one_tile_is_searched_whole(write_tatoeba: Callable, ngram_encoder) -> None:
    rows = [(f"Zimmer {i * 7919} im Hotel {i % 13}", f"room {i * 7919} of hotel {i % 11}") for i in range(1203)]
    folder = write_tatoeba({"deu": rows})
    found = _accuracy(measured(Tatoeba, ngram_encoder(), data=str(folder)), "de")
    assert found == _by_hand(ngram_encoder(), folder, "deu", "de")
    assert 50 < found.mean < 100


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
    figures = measured(Tatoeba, ngram_encoder(), data=str(published_tatoeba), langs="deu,fr,cmn")
    for code, language in (("deu", "de"), ("fra", "fr"), ("cmn", "zh")):
        assert _accuracy(figures, language) == _by_hand(ngram_encoder(), published_tatoeba, code, language)
    assert _accuracy(figures, "de").mean > 10 > _accuracy(figures, "zh").mean


@pytest.mark.parametrize(
    ("languages", "codes"),
    [("all", ["cmn", "deu", "swh"]), ("de,zh", ["deu", "cmn"]), ("deu, cmn,de", ["deu", "cmn"]), ("SW", ["swh"])],
)
def test_languages_are_chosen_by_either_code(tatoeba_folder: Path, languages: str, codes: list[str]) -> None:
    assert tatoeba.select(languages, tatoeba_folder) == codes


def test_files_of_another_code_of_the_language_are_found(write_tatoeba: Callable) -> None:
    folder = write_tatoeba({"swa": [("Asante.", "Thanks."), ("Ndiyo.", "Yes.")]})
    assert tatoeba.select("sw", folder) == tatoeba.select("swh", folder) == ["swa"]


def test_one_direction_is_quoted(write_tatoeba: Callable[..., Path], ngram_encoder) -> None:
    sides = (
        ("Haus am See 1", "Boot am Fluss 2", "Turm am Meer 3"),
        ("Haus am See 1 Haus Boot am Fluss 2", "Boot", "Turm"),
    )
    folder = write_tatoeba({"deu": list(zip(*sides, strict=True))})
    both = measured(Tatoeba, ngram_encoder(), data=str(folder))
    (label,) = both.headline
    assert _accuracy(both, "de") == pytest.approx((200 / 3, 100))
    for direction in ("xx-en", "en-xx"):
        found = measured(Tatoeba, ngram_encoder(), data=str(folder), direction=direction)
        assert found.values == both.values
        assert found.headline == {f"{direction}, {label}": found.values["averages"]["mean"][direction]}
        drawn = found.resamples[f"{direction}, {label}"]
        assert drawn.mean() == pytest.approx(found.headline[f"{direction}, {label}"], abs=2)
        assert not np.array_equal(drawn, both.resamples[label])


def test_the_help_says_how_margins_differ_from_xsim(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tatoeba", "--help"])
    assert "LASER's xSIM takes the best of the nearest neighbours" in " ".join(capsys.readouterr().out.split())


def test_an_average_is_given_only_when_all_its_languages_were_measured() -> None:
    every = {language: Accuracy(80.0 + i, 60.0 + i) for i, language in enumerate(tatoeba.GROUPS["36"])}
    found, missing = tatoeba.averages(every)
    assert list(found) == ["11", "14", "28", "36"] and not missing
    assert found["36"].forward == pytest.approx(80 + 35 / 2)
    assert found["11"].backward == pytest.approx(
        np.mean([every[language].backward for language in "fr zh es de ru it tr pt hu ja nl".split()])
    )
    without = {language: accuracy for language, accuracy in every.items() if language not in ("sw", "fr")}
    found, missing = tatoeba.averages(without)
    assert found == {} and (missing["14"], missing["28"]) == (["fr", "sw"], ["fr"])


def test_json_and_table_say_what_was_measured(
    tatoeba_folder: Path, ngram_encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tatoeba, "GROUPS", {"2": ("de", "zh"), "3": ("de", "zh", "fr")})
    figures = measured(Tatoeba, ngram_encoder(), data=str(tatoeba_folder))
    values, keys = figures.values, {"xx-en", "en-xx", "mean"}
    assert set(values) == {"mean", "languages", "averages", "pairs"} and values["pairs"] == 13
    assert set(values["languages"]["de"]) == {*keys, "pairs"}
    assert set(values["averages"]) == {"mean", "2"} and set(values["averages"]["2"]) == keys
    assert values["mean"] == figures.headline["mean of 3"]
    assert figures.headline["average of 2"] == np.mean([values["languages"][code]["mean"] for code in ("de", "zh")])
    lines = [line.split() for line in figures.printed().splitlines()]
    assert lines[0] == ["language", "pairs", "xx-en", "en-xx", "mean"]
    chinese = values["languages"]["zh"]
    numbers = [f"{chinese[key]:.2f}" for key in ("xx-en", "en-xx", "mean")]
    assert lines[2] == ["Chinese", "(zh)", "4", *numbers]
    assert lines[6][:4] == ["mean", "of", "3", "13"] and lines[7][:3] == ["average", "of", "2"]
    assert "no average over 3 (1 missing)" in figures.text and lines[-1][0] == "overlap:"


def test_saved_embeddings_replace_older_ones(tatoeba_folder: Path, ngram_encoder) -> None:
    folder = tatoeba_folder / "vectors"
    folder.mkdir()
    (folder / "deu.deu.npy").write_text("old")
    measured(Tatoeba, ngram_encoder(), data=str(tatoeba_folder), langs="de", save_embeddings=str(folder))
    assert np.load(folder / "deu.deu.npy", allow_pickle=False).dtype == np.float32
    assert sorted(file.name for file in folder.iterdir()) == ["deu.deu.npy", "deu.eng.npy"]


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
        ("absent", r"no Tatoeba files for fr; the data has de,sw,zh|the data has zh,de,sw"),
        ("group", r"no Tatoeba files for fr es ru it tr pt hu ja nl; the data has"),
        ("none", r"no language named; the data has"),
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
    options = {"data": str(tatoeba_folder), "save_embeddings": str(tatoeba_folder / "vectors")}
    with pytest.raises(UserError, match=r"cannot encode zh sw \(.*no tower.*\); give `langs` de$"):
        measured(Tatoeba, ngram_encoder(known=["de", "en"]), **options)
    with pytest.raises(UserError, match="cannot encode en .*name another encoder"):
        measured(Tatoeba, ngram_encoder(known=["de", "zh", "sw"]), **options)
    assert not (tatoeba_folder / "vectors").exists()
    figures = measured(Tatoeba, ngram_encoder(known=["de", "en"]), **options, langs="de")
    assert set(figures.values["languages"]) == {"de"} and len(list((tatoeba_folder / "vectors").iterdir())) == 2


def _published_formula(x: np.ndarray, count: int) -> np.ndarray:
    """Return v - (v.c)c for the first right singular vectors c of the uncentred matrix, in float64."""
    x = x.astype(np.float64)
    for component in np.linalg.svd(x, full_matrices=False)[2][:count]:
        x = x - np.outer(x @ component, component)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("margin", ["absolute", "distance", "ratio"])
def test_components_and_margins_are_those_of_the_formulas(tatoeba_folder: Path, ngram_encoder, margin: str) -> None:
    vectors = tatoeba_folder / "vectors"
    options = {"margin": margin, "neighbours": 2, "remove_components": 1, "save_embeddings": str(vectors)}
    figures = measured(Tatoeba, ngram_encoder(), data=str(tatoeba_folder), **options)
    pools = _pools(tatoeba_folder)
    for pool in pools:
        sides = [ngram_encoder().encode(side, "x") for side in (pool.sentences, pool.english)]
        x, y = (_published_formula(side, 1) for side in sides)
        kept = [np.load(vectors / f"{pool.code}.{side}.npy") for side in (pool.code, "eng")]
        np.testing.assert_allclose(kept, [x, y], atol=1e-5)
        cosine = x @ y.T
        near = [np.sort(cosine, axis=axis).take([-1, -2], axis=axis).mean(axis=axis) for axis in (1, 0)]
        around = (near[0][:, None] + near[1]) / 2
        scores = {"absolute": cosine, "distance": cosine - around, "ratio": cosine / around}[margin]
        right = [(scores.argmax(axis=axis) == np.arange(len(x))).mean() * 100 for axis in (1, 0)]
        assert _accuracy(figures, pool.language) == Accuracy(*right)


def test_whitened_vectors_are_compared(tatoeba_folder: Path, ngram_encoder) -> None:
    figures = measured(Tatoeba, ngram_encoder(), data=str(tatoeba_folder), whiten=2, langs="de")
    (pool,) = [pool for pool in _pools(tatoeba_folder) if pool.language == "de"]
    x, y = (whiten(ngram_encoder().encode(side, "x"), 2) for side in (pool.sentences, pool.english))
    cosine = normalize_rows(x) @ normalize_rows(y).T
    right = [(cosine.argmax(axis=axis) == np.arange(len(x))).mean() * 100 for axis in (1, 0)]
    assert _accuracy(figures, "de") == Accuracy(*right) and figures.settings["whiten"] == 2
    with pytest.raises(UserError, match="`whiten` 900: whitening to 900 directions of vectors of shape"):
        measured(Tatoeba, ngram_encoder(), data=str(tatoeba_folder), whiten=900, langs="de")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": "ratio", "neighbours": 4}, "`neighbours` 4, but 3 pairs of swh; give a smaller number"),
        ({"remove_components": 3}, "`remove_components` 3, but 3 pairs of swh"),
        ({"remove_components": -1}, "`remove_components` -1; give 0 or more"),
        ({"neighbours": 0}, "`neighbours` 0; give at least 1"),
        ({"whiten": -1}, "`whiten` -1; give 0 or more"),
    ],
)
def test_numbers_too_large_for_the_data_are_one_clear_line(tatoeba_folder: Path, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tatoeba(Tatoeba.Config(data=str(tatoeba_folder), **options)).read()
