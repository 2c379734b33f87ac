from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import measured
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.evaluation import Figures
from xrep.evaluation.language_bias import LanguageBias
from xrep.evaluation.multilingual import TextOptions, Texts, read_texts
from xrep.evaluation.overlap import Overlap
from xrep.metrics.geometry import language_shares
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.cleaning import sentence_hashes
from xrep_cli.eval import main

NUMBERS = [f"{i}" for i in range(40)]


class Biased:
    """An encoder whose vectors have a direction for the meaning (a number), noise, and a direction for the language."""

    path, training_hashes = "biased", None

    def __init__(self, bias: float) -> None:
        self.bias = bias

    def encode(self, sentences: list[str], lang: str | None = None, **options) -> np.ndarray:
        own = 64 + ["de", "en", "fr", "zh"].index(lang)
        vectors = np.random.default_rng(own).normal(scale=0.02, size=(len(sentences), 68)).astype(np.float32)
        for row, sentence in enumerate(sentences):
            vectors[row, int(sentence.split()[1])] += 1
        vectors[:, own] += self.bias
        return normalize_rows(vectors)

    def fingerprint(self) -> str:
        return "biased"


def _write(folder: Path, **lines: list[str]) -> str:
    for language, sentences in lines.items():
        (folder / f"text.{language}").write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    return str(folder / "text.{lang}")


def _write_numbers(folder: Path, *languages: str) -> str:
    return _write(folder, **{language: [f"{language} {number}" for number in NUMBERS] for language in languages})


def _matrices(figures: Figures) -> tuple[np.ndarray, np.ndarray]:
    before, after = (figures.values[when].values() for when in ("before", "after"))
    return np.array([[*row.values()] for row in before]), np.array([[*row.values()] for row in after])


def test_removal_takes_the_bias_of_an_encoder_that_has_one(tmp_path: Path) -> None:
    options = {"data": _write_numbers(tmp_path, "de", "fr", "zh", "en"), "neighbours": 3}
    figures = measured(LanguageBias, Biased(2.0), **options)
    before, after = _matrices(figures)
    assert (figures.settings["languages"], figures.settings["sentences"]) == (["de", "en", "fr", "zh"], 40)
    assert before.diagonal().min() > 99  # every neighbour is of the own language
    assert after.diagonal().max() < 2  # the three neighbours are the three translations
    np.testing.assert_allclose(before.sum(axis=1), 100)
    np.testing.assert_allclose(after[~np.eye(4, dtype=bool)], 100 / 3, atol=1)
    assert figures.values["unbiased"] == pytest.approx(100 * 39 / 159)
    fair, _ = _matrices(measured(LanguageBias, Biased(0.0), **options))
    assert fair.diagonal().max() < 2


def test_components_are_those_of_each_language(tmp_path: Path) -> None:
    encoder, data = Biased(0.4), _write_numbers(tmp_path, "de", "fr", "zh")
    before, after = _matrices(measured(LanguageBias, encoder, data=data, neighbours=4, remove_components=3))
    sides = []
    for language in ("de", "fr", "zh"):
        vectors = encoder.encode([f"{language} {number}" for number in NUMBERS], language).astype(np.float64)
        components = np.linalg.svd(vectors, full_matrices=False)[2][:3]
        sides.append(normalize_rows(vectors - vectors @ components.T @ components))
    np.testing.assert_allclose(after, 100 * language_shares(sides, 4), atol=0.5)
    assert np.abs(after - before).max() > 5


def test_the_table_and_the_values_say_the_same(tmp_path: Path) -> None:
    data = _write_numbers(tmp_path, "de", "zh")
    figures = measured(LanguageBias, Biased(0.7), data=data, neighbours=5, remove_components=2)
    before, after = _matrices(figures)
    assert figures.values["before"]["de"] == {"de": before[0, 0], "zh": before[0, 1]}
    assert figures.values["own"]["after"] == pytest.approx(after.diagonal().mean())
    lines = figures.printed().splitlines()
    assert "5 nearest neighbours" in lines[0] and "40 sentences of each of 2 languages" in lines[0]
    assert lines[3].split() == ["German", "(de)", f"{before[0, 0]:.1f}", f"{after[0, 0]:.1f}"]
    assert lines[-1].startswith("overlap: unknown")
    assert list(figures.headline) == ["own language of 2", "own language of 2, without 2 components"]


def test_every_language_gives_as_many_sentences_and_english_comes_in_turn(write_tatoeba: Callable) -> None:
    german = [(f"de {i}", f"en {i}") for i in range(30)]
    french = [(f"fr {i}", f"en {j}") for i, j in enumerate((10, 39, *range(11, 29)))]
    folder, asked = write_tatoeba({"deu": german, "fra": french}), {}

    class Listening(Biased):
        def encode(self, sentences: list[str], lang: str | None = None, **options) -> np.ndarray:
            asked[lang] = list(sentences)
            return super().encode(sentences, lang)

    figures = measured(LanguageBias, Listening(1.0), data=str(folder), neighbours=3)
    assert {language: len(sentences) for language, sentences in asked.items()} == dict.fromkeys(asked, 16)
    assert asked["de"] == [pair[0] for pair in german[:16]] and figures.settings["sentences"] == 16
    assert asked["en"][:4] == ["en 0", "en 39", "en 2", "en 12"]  # of German, French, German, French
    assert len(set(asked["en"])) == 16
    measured(LanguageBias, Listening(1.0), data=str(folder), neighbours=3, sentences=7)
    assert {len(sentences) for sentences in asked.values()} == {7}


def test_what_was_trained_on_is_left_out_of_every_language(tmp_path: Path, write_tatoeba: Callable) -> None:
    encoder, hashes = Biased(1.0), tmp_path / "training_hashes.npy"
    np.save(hashes, np.unique(sentence_hashes(["DE 3", "zh 5", "de 5", "fr 1"])))
    encoder.training_hashes = hashes
    data = _write_numbers(tmp_path, "de", "zh")
    assert measured(LanguageBias, encoder, data=data).overlap == Overlap(2, 40)  # rows 3 and 5
    figures = measured(LanguageBias, encoder, data=data, drop_overlap=True)
    assert (figures.settings["sentences"], figures.overlap) == (38, Overlap(2, 40, dropped=True))
    folder = write_tatoeba({c: [(f"{p} {i}", f"en {i}") for i in range(40)] for c, p in (("deu", "de"), ("cmn", "zh"))})
    figures = measured(LanguageBias, encoder, data=str(folder), drop_overlap=True)
    assert figures.settings["sentences"] == 38  # German lost 2, Chinese 1
    assert figures.overlap == Overlap(3, 120, dropped=True)


def test_what_is_dropped_is_replaced_by_later_sentences(tmp_path: Path) -> None:
    encoder, hashes, asked = Biased(1.0), tmp_path / "training_hashes.npy", {}
    np.save(hashes, np.unique(sentence_hashes(["de 3", "zh 5"])))
    encoder.training_hashes = hashes
    encode = encoder.encode
    encoder.encode = lambda sentences, lang: (asked.update({lang: sentences}), encode(sentences, lang))[1]
    data = _write_numbers(tmp_path, "de", "zh")
    figures = measured(LanguageBias, encoder, data=data, sentences=10, neighbours=3, drop_overlap=True)
    assert figures.settings["sentences"] == 10 and figures.overlap == Overlap(2, 40, dropped=True)
    assert asked["de"] == [f"de {i}" for i in (0, 1, 2, 4, 6, 7, 8, 9, 10, 11)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": 80}, "`neighbours` 80, but 40 sentences of each of 2 languages; give 1 to 79"),
        ({"neighbours": 0}, "`neighbours` 0"),
        ({"remove_components": 0}, "`remove_components` 0; give at least 1"),
        ({"remove_components": 40}, "`remove_components` 40, but 40 sentences .*; give at most 39"),
        ({"remove_components": 68, "sentences": 1000}, "`remove_components` 68, but 40"),
        ({"sentences": 1}, "fewer than 2 sentences of each language; give a larger `sentences`"),
        ({"drop_overlap": True}, "no training hashes beside the encoder"),
    ],
)
def test_numbers_out_of_range_are_one_clear_line(tmp_path: Path, options: dict, message: str) -> None:
    data = _write_numbers(tmp_path, "de", "zh")
    with pytest.raises(UserError, match=message):
        measured(LanguageBias, Biased(1.0), data=data, **options)


def _read(data: object, langs: str | None = None, column: int = 1) -> Texts:
    return read_texts(TextOptions(data=str(data), langs=langs, column=column))


def test_parallel_files_are_read_and_cleaned(tmp_path: Path) -> None:
    pattern = _write(
        tmp_path,
        deu=["eins", "zwei", "", "eins", "42", "drei"],
        en=["one", "two", "nothing", "one again", "42", "three"],
        cmn=["一", "二", "无", "又一", "42", "二"],
    )
    texts = _read(pattern)
    assert texts.groups == [{"de": ["eins", "zwei"], "en": ["one", "two"], "zh": ["一", "二"]}]
    assert [file.name for file in texts.files] == ["text.deu", "text.en", "text.cmn"]
    assert _read(pattern, "eng,de").groups == [{"de": ["eins", "zwei", "drei"], "en": ["one", "two", "three"]}]
    for language, sentence in (("de", "Hallo"), ("fr", "Salut")):
        rows = f"id\tsentence1\n1\t{sentence} A\n2\t{sentence} B\n"
        (tmp_path / f"test-{language}.tsv").write_text(rows, encoding="utf-8")
    tables = _read(tmp_path / "test-{lang}.tsv", column=2)  # the header says the same in all languages
    assert tables.groups == [{"de": ["Hallo A", "Hallo B"], "fr": ["Salut A", "Salut B"]}]
    for language, others in {"de": ["NS", "Hallo", "Tag", "B"], "fr": ["Salut", "Bonjour", "NS", "C"]}.items():
        (tmp_path / language).mkdir()
        rows = [f"{number}\t{text}\tx\t1" for number, text in enumerate(others, 1)]
        text = "\n".join(["id\tsentence1\tsentence2\tlabel", *rows, ""])
        (tmp_path / language / "test_2k.tsv").write_text(text, encoding="utf-8")
    published = _read(tmp_path / "{lang}" / "test_2k.tsv", column=2)  # PAWS-X, where NS is no sentence
    assert published.groups == [{"de": ["Hallo", "B"], "fr": ["Bonjour", "C"]}]


def test_tatoeba_pairs_each_language_with_english(tatoeba_folder: Path) -> None:
    texts = _read(tatoeba_folder)  # German and Chinese are of those shown, Swahili is not
    assert [list(group) for group in texts.groups] == [["de", "en"], ["zh", "en"]]
    assert texts.groups[0]["en"][0] == "Maria has lived in Berlin since 1998." and len(texts.files) == 4
    assert _read(tatoeba_folder, "all").languages == ["de", "en", "sw", "zh"]
    assert _read(tatoeba_folder, "swh,en").languages == ["en", "sw"]
    for file in [*tatoeba_folder.glob("*deu*"), *tatoeba_folder.glob("*cmn*")]:
        file.unlink()
    assert _read(tatoeba_folder).languages == ["en", "sw"]


@pytest.mark.parametrize(
    ("data", "languages", "message"),
    [
        ("text.{lang}", "de,ru", "no sentences of ru; the data has de,en,fr"),
        ("text.{lang}", "de", "sentences of fewer than 2 languages"),
        ("text.{lang}", "all", r"text.fr:3: 2 lines, but text.(de|en) has 3; line i of one must belong"),
        ("none.{lang}", None, "no such files; {lang} stands for the language"),
        ("{lang}/{lang}", None, "{lang} occurs more than once"),
        ("absent", None, "absent: no such folder"),
        ("tatoeba", None, "tatoeba.deu-eng.eng: no such file"),
        ("twice.{lang}", None, "twice.deu: .*twice.de is of the same language"),
        ("blank.{lang}", None, "blank.de: 0 different sentences with a translation"),
        ("short-{lang}.tsv", None, "short-de.tsv:2: 1 columns where 2 are needed"),
    ],
)
def test_bad_data_is_one_clear_line(tmp_path: Path, data: str, languages: str | None, message: str) -> None:
    _write(tmp_path, de=["a", "b", "c"], en=["d", "e", "f"], fr=["g", "h"])
    for name, text in (("twice.de", "a\n"), ("twice.deu", "a\n"), ("blank.de", "\n"), ("blank.en", "a\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    for language in ("de", "en"):
        (tmp_path / f"short-{language}.tsv").write_text("1\ta\n2\n", encoding="utf-8")
    (tmp_path / "tatoeba").mkdir()
    (tmp_path / "tatoeba" / "tatoeba.deu-eng.deu").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        _read(tmp_path / data, languages, 2 if "short" in data else 1)
    assert "\n" not in str(error.value)


def test_the_language_with_too_few_sentences_is_named(write_tatoeba: Callable) -> None:
    pairs = [("eins", "one"), ("zwei", "two")]
    folder = write_tatoeba({"deu": pairs, "fra": [("un", "one"), ("un", "one again")]})
    with pytest.raises(UserError, match=r"tatoeba.fra-eng.fra: 1 different sentences with a translation"):
        _read(folder)


def test_the_command_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    german, english = zip(*sentence_pairs(30), strict=True)
    data = _write(tmp_path, de=german, en=english)
    encoder = write_encoder(tmp_path / "run")
    output, picture = tmp_path / "out.json", tmp_path / "out.png"
    options = ["language-bias", "--path", str(encoder), "--data", data, "--neighbours", "4", "--sentences", "25"]
    assert main([*options, "--json", str(output), "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    result = json.loads(output.read_text(encoding="utf-8"))
    own = {"languages": ["de", "en"], "sentences": 25, "neighbours": 4, "remove_components": 1}
    assert result["settings"] == {**own, "drop_overlap": False, "layer": None, "precision": "float32"}
    assert len(result["data"]) == 2 and result["headline"]["own language of 2"] == result["values"]["own"]["before"]
    assert f"{result['values']['before']['de']['de']:.1f}" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["language-bias", "--data", data, "--list-sentences", str(tmp_path / "list")]) == 0
    assert capsys.readouterr().out.startswith("60 sentences")
    bad = tmp_path / "vectors"
    bad.mkdir()
    lines = (tmp_path / "list").read_text(encoding="utf-8")
    (bad / "sentences.tsv").write_text(lines, encoding="utf-8")
    vectors = np.ones((60, 4), np.float32)
    vectors[7] = np.nan
    np.save(bad / "vectors.npy", vectors)
    assert main(["language-bias", "--path", str(bad), "--data", data]) == 2
    assert "vectors.npy: 1 of 30 vectors are not finite" in capsys.readouterr().err


def test_the_published_files_are_read(published_tatoeba: Path) -> None:
    texts = _read(published_tatoeba)
    assert texts.languages == ["de", "en", "es", "fr", "ja", "ko", "zh"] and len(texts.groups) == 6
    newstest = published_tatoeba.parent / "mt" / "newstest"
    if newstest.is_dir():
        texts = _read(newstest / "newstest2012.{lang}", "all")
        assert texts.languages == ["cs", "de", "en", "fr"] and 2900 < len(texts.groups[0]["cs"]) <= 3003
