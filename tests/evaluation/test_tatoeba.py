from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import PAIRS, NgramEncoder, measured, published, write_tatoeba
from tests.retrieval import plain_margins
from xrep.errors import UserError
from xrep.evaluation import tatoeba
from xrep.evaluation.evaluation import Examples, Figures
from xrep.evaluation.tatoeba import Tatoeba
from xrep.metrics.components import remove_components
from xrep.metrics.retrieval import Accuracy
from xrep.store.vectors import normalize_rows


def by_hand(folder: Path, code: str) -> Accuracy:
    """Compute the published protocol without our code."""
    sides = []
    for side in (code, "eng"):
        text = (folder / f"tatoeba.{code}-eng.{side}").read_text(encoding="utf-8")
        vectors = NgramEncoder().encode(text.rstrip("\n").split("\n"))
        sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return accuracy_by(sides[0] @ sides[1].T)


def accuracy_by(scores: np.ndarray) -> Accuracy:
    lines = np.arange(len(scores))
    return Accuracy(*(100 * float((scores.argmax(axis=axis) == lines).mean()) for axis in (1, 0)))


def accuracy(figures: Figures, language: str) -> Accuracy:
    found = figures.values["tables"][language]
    return Accuracy(found["xx-en"], found["en-xx"])


def tables_of(folder: Path, languages: str = "all") -> list[Examples]:
    return Tatoeba(Tatoeba.Config(data=str(folder), langs=languages)).tables


def test_the_averages_are_over_the_published_languages() -> None:
    groups = {group: set(languages) for group, languages in tatoeba.LANGUAGE_GROUPS.items()}
    assert groups["14"] == set("ar bg de el es fr hi ru sw th tr ur vi zh".split())
    assert groups["28"] == groups["36"] - set("jv ka kk ml sw ta te th".split())
    table_7 = "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr ur vi"
    assert groups["36"] == {*table_7.split(), "zh"}
    assert groups["11"] == set("fr zh es de ru it tr pt hu ja nl".split())
    assert all(len(languages) == int(group) for group, languages in tatoeba.LANGUAGE_GROUPS.items())


def test_accuracy_is_that_of_the_protocol_by_hand(tatoeba_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tatoeba, "LANGUAGE_GROUPS", {"2": ("de", "zh"), "3": ("de", "zh", "fr")})
    figures = measured(Tatoeba, NgramEncoder(), data=str(tatoeba_folder))
    found, averages = figures.values["tables"], figures.values["averages"]
    assert {language: own["examples"] for language, own in found.items()} == {"zh": 4, "de": 6, "sw": 3}
    for code, language in (("cmn", "zh"), ("deu", "de"), ("swh", "sw")):
        assert accuracy(figures, language) == by_hand(tatoeba_folder, code)
    assert found["de"]["mean"] > 60 > found["zh"]["mean"]
    # The mean is over languages, however many pairs each has.
    mean = averages["mean of 3"]["mean"]
    assert mean == pytest.approx(np.mean([own["mean"] for own in found.values()]))
    assert averages["mean of 3"]["examples"] == 13 and set(averages) == {"mean of 3", "average of 2"}
    mean_of_2 = np.mean([found[code]["mean"] for code in ("de", "zh")])
    assert figures.headline == {"mean of 3": mean, "average of 2": pytest.approx(mean_of_2)}
    lines = [line.split() for line in figures.text.splitlines()]
    assert lines[0] == ["language", "pairs", "xx-en", "en-xx", "mean"]
    assert lines[2] == ["Chinese", "(zh)", "4", *(f"{found['zh'][key]:.2f}" for key in ("xx-en", "en-xx", "mean"))]
    assert lines[6][:4] == ["mean", "of", "3", "13"] and lines[7][:3] == ["average", "of", "2"]
    # A pool that is larger than one tile is searched whole.
    rows = [(f"Zimmer {i * 7919} im Hotel {i % 13}", f"room {i * 7919} of hotel {i % 11}") for i in range(1203)]
    folder = write_tatoeba(tmp_path / "large", "deu", rows)
    large = accuracy(measured(Tatoeba, NgramEncoder(), data=str(folder)), "de")
    assert large == by_hand(folder, "deu") and 50 < large.mean < 100


@pytest.mark.slow
def test_the_published_files_are_read_and_measured() -> None:
    folder = published("tatoeba")
    sizes = {pairs.name: len(pairs) for pairs in tables_of(folder)}
    assert len(sizes) == 112 and sum(sizes.values()) == 88877
    for group, languages in tatoeba.LANGUAGE_GROUPS.items():
        assert [pairs.name for pairs in tables_of(folder, group)] == [name for name in sizes if name in languages]
    assert {sizes[language] for language in tatoeba.LANGUAGE_GROUPS["28"]} == {1000}
    figures = measured(Tatoeba, NgramEncoder(), data=str(folder), langs="deu,fr,cmn")
    for code, language in (("deu", "de"), ("fra", "fr"), ("cmn", "zh")):
        assert accuracy(figures, language) == by_hand(folder, code)
    assert accuracy(figures, "de").mean > 10 > accuracy(figures, "zh").mean


def test_languages_are_chosen_by_either_code(tatoeba_folder: Path, tmp_path: Path) -> None:
    """They are in the order of the folder, and so have the same draws, however they are named."""
    chosen = {"all": "zh de sw", "de,zh": "zh de", "deu, cmn,de": "zh de", "SW": "sw"}
    for languages, codes in chosen.items():
        assert [pairs.name for pairs in tables_of(tatoeba_folder, languages)] == codes.split()
    other = write_tatoeba(tmp_path / "other", "swa", PAIRS["swh"])  # another code of the language
    assert tables_of(other, "sw") == tables_of(other, "swh") == [tatoeba.read_tatoeba(other, "swa")]
    write_tatoeba(tmp_path / "other", "swh", PAIRS["swh"])
    with pytest.raises(UserError, match="swa and swh are the same language; keep the files of one"):
        tables_of(other, "sw")


def test_one_direction_is_quoted(tmp_path: Path) -> None:
    german = "Haus am See 1", "Boot am Fluss 2", "Turm am Meer 3"
    english = "Haus am See 1 Haus Boot am Fluss 2", "Boot", "Turm"
    folder = write_tatoeba(tmp_path, "deu", list(zip(german, english, strict=True)))
    both = measured(Tatoeba, NgramEncoder(), data=str(folder))
    assert accuracy(both, "de") == pytest.approx((200 / 3, 100))
    for direction in ("xx-en", "en-xx"):
        found = measured(Tatoeba, NgramEncoder(), data=str(folder), direction=direction)
        name = f"{direction}, mean of 1"
        assert found.values == both.values
        assert found.headline == {name: found.values["averages"]["mean of 1"][direction]}
        assert found.resamples[name].mean() == pytest.approx(found.headline[name], abs=2)
        assert not np.array_equal(found.resamples[name], both.resamples["mean of 1"])


def test_an_encoder_without_a_tower_says_so_before_the_work(tatoeba_folder: Path) -> None:
    encoder, options = NgramEncoder(known=["de", "en"]), {"data": str(tatoeba_folder)}
    with pytest.raises(UserError, match=r"cannot encode zh sw \(.*no tower.*\); leave them out of `langs`"):
        measured(Tatoeba, encoder, **options)
    assert {len(sentences) for _, sentences, _ in encoder.asked} == {1}
    assert set(measured(Tatoeba, encoder, **options, langs="de").values["tables"]) == {"de"}


@pytest.mark.parametrize("margin", ["absolute", "distance", "ratio"])
def test_changed_vectors_are_compared_by_a_margin(tatoeba_folder: Path, margin: str) -> None:
    encoder, options = NgramEncoder(width=96), {"margin": margin, "neighbours": 2, "remove_components": 1}
    figures = measured(Tatoeba, encoder, data=str(tatoeba_folder), **options)
    for pairs in tables_of(tatoeba_folder):
        x, y = (normalize_rows(remove_components(encoder.encode(side), 1)) for side in pairs.columns)
        assert accuracy(figures, pairs.name) == accuracy_by(plain_margins.scores(x, y, 2, margin))
    assert figures.settings == {"langs": "all", "direction": "both", "layer": None, "precision": "float32",
                                "drop_overlap": False, "prompt": None, "prompt_name": None, **options}  # fmt: skip
    with pytest.raises(UserError, match="3 pairs of sw, but 901 are needed"):
        measured(Tatoeba, encoder, data=str(tatoeba_folder), remove_components=900)


def test_rows_with_a_blank_side_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "tatoeba.deu-eng.deu").write_text("das Haus\n\n \nder Hund\ndie Katze\n\n")
    (tmp_path / "tatoeba.deu-eng.eng").write_text("the house\n\n\nthe dog\n\n\n")
    assert tatoeba.read_tatoeba(tmp_path, "deu").columns == (["das Haus", "der Hund"], ["the house", "the dog"])
