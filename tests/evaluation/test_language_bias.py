from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured, published, save_hashes, write, write_tatoeba
from xrep.errors import UserError
from xrep.evaluation.encoders import Overlap
from xrep.evaluation.evaluation import Examples
from xrep.evaluation.language_bias import LanguageBias
from xrep.evaluation.reading import ParallelOptions, languages_of, read_texts
from xrep.metrics.geometry import language_shares
from xrep.store.vectors import normalize_rows

NUMBERS = range(40)


class Biased(NgramEncoder):
    """An encoder whose vectors have a direction for the meaning (a number), noise, and a direction for the language."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.bias = bias

    def encode(self, sentences: list[str], lang: str | None = None, **options: bool) -> np.ndarray:
        self.asked.append((lang, list(sentences), True))
        own = 64 + ["de", "en", "fr", "zh"].index(lang)
        vectors = np.random.default_rng(own).normal(scale=0.02, size=(len(sentences), 68)).astype(np.float32)
        for row, sentence in enumerate(sentences):
            vectors[row, int(sentence.split()[1])] += 1
        vectors[:, own] += self.bias
        return normalize_rows(vectors)


def write_numbers(folder: Path, *languages: str) -> str:
    for language in languages:
        write(folder / f"text.{language}", [f"{language} {number}" for number in NUMBERS])
    return str(folder / "text.{lang}")


def test_shares_are_those_of_the_formula_and_the_table_shows_them(tmp_path: Path) -> None:
    """Before the components of each language are removed, and after."""
    encoder, data, sides = Biased(0.4), write_numbers(tmp_path, "de", "fr", "zh"), []
    figures = measured(LanguageBias, encoder, data=data, neighbours=4, remove_components=3)
    before, after = (
        np.array([[*row.values()] for row in figures.values[when].values()]) for when in ("before", "after")
    )
    vectors = [encoder.encode([f"{lang} {number}" for number in NUMBERS], lang) for lang in ("de", "fr", "zh")]
    for own in map(np.float64, vectors):
        components = np.linalg.svd(own, full_matrices=False)[2][:3]
        sides.append(normalize_rows(own - own @ components.T @ components))
    np.testing.assert_allclose(before, 100 * language_shares(vectors, 4), atol=1e-9)
    np.testing.assert_allclose(after, 100 * language_shares(sides, 4), atol=0.5)
    assert before.diagonal().min() > after.diagonal().max() + 5
    assert figures.values["before"]["de"] == dict(zip(("de", "fr", "zh"), before[0], strict=True))
    assert figures.values["own"]["after"] == pytest.approx(after.diagonal().mean())
    assert figures.values["unbiased"] == pytest.approx(100 * 39 / 119)
    row = figures.printed().splitlines()[3]
    assert row.split() == ["German", "(de)", f"{before[0, 0]:.2f}", f"{after[0, 0]:.2f}"]
    for options, message in (
        ({"neighbours": 120}, "`neighbours` 120, but 40 sentences of each of 3 languages; give 1 to 119"),
        ({"remove_components": 40}, "`remove_components` 40, but 40 sentences .*; give 1 to 39"),
    ):
        with pytest.raises(UserError, match=message):
            measured(LanguageBias, encoder, data=data, **options)


def test_languages_give_as_many_sentences_english_in_turn_and_later_ones_for_what_is_dropped(tmp_path: Path) -> None:
    german = [(f"de {i}", f"en {i}") for i in range(30)]
    french = [(f"fr {i}", f"en {j}") for i, j in enumerate((10, 39, *range(11, 29)))]
    folder, encoder = write_tatoeba(tmp_path / "tatoeba", "deu", german), Biased(1.0)
    write_tatoeba(folder, "fra", french)
    figures = measured(LanguageBias, encoder, data=str(folder), neighbours=3)
    asked = {lang: sentences for lang, sentences, _ in encoder.asked}
    assert {len(sentences) for sentences in asked.values()} == {16} == {figures.settings["sentences"]}
    assert asked["de"] == [pair[0] for pair in german[:16]]
    assert asked["en"][:4] == ["en 0", "en 39", "en 2", "en 12"]  # of German, French, German, French
    assert len(set(asked["en"])) == 16
    encoder.training_hashes = save_hashes(tmp_path, ["de 3", "zh 5", "de 5", "fr 1"])
    data = write_numbers(tmp_path, "de", "zh")
    figures = measured(LanguageBias, encoder, data=data, sentences=10, neighbours=3, drop_overlap=True)
    assert figures.settings["sentences"] == 10 and figures.overlap == Overlap(2, 40, dropped=True)
    assert [f"de {i}" for i in (0, 1, 2, 4, 6, 7, 8, 9, 10, 11)] in [sentences for _, sentences, _ in encoder.asked]


def read(data: object, langs: str | None = None, column: int = 1) -> list[Examples]:
    return read_texts(ParallelOptions(data=str(data), langs=langs, column=column))


def test_parallel_files_are_read_and_cleaned(tmp_path: Path) -> None:
    write(tmp_path / "text.deu", ["eins", "zwei", "", "eins", "42", "drei"])
    write(tmp_path / "text.en", ["one", "two", "nothing", "one again", "42", "three"])
    write(tmp_path / "text.cmn", ["一", "二", "无", "又一", "42", "二"])
    pattern = tmp_path / "text.{lang}"
    (text,) = read(pattern)
    assert text.languages == ("de", "en", "zh") and text.columns == (["eins", "zwei"], ["one", "two"], ["一", "二"])
    assert [file.name for file in text.files] == ["text.deu", "text.en", "text.cmn"]
    (text,) = read(pattern, "eng,de")
    assert text.columns == (["eins", "zwei", "drei"], ["one", "two", "three"])
    for language, sentence in (("de", "Hallo"), ("fr", "Salut")):
        write(tmp_path / f"test-{language}.tsv", ["id\tsentence1", f"1\t{sentence} A", f"2\t{sentence} B"])
    (text,) = read(tmp_path / "test-{lang}.tsv", column=2)  # the header says the same in all languages
    assert text.columns == (["Hallo A", "Hallo B"], ["Salut A", "Salut B"])
    for language, others in {"de": ["NS", "Hallo", "Tag", "B"], "fr": ["Salut", "Bonjour", "NS", "C"]}.items():
        rows = [f"{number}\t{text}\tx\t1" for number, text in enumerate(others, 1)]
        write(tmp_path / language / "test_2k.tsv", ["id\tsentence1\tsentence2\tlabel", *rows])
    (text,) = read(tmp_path / "{lang}" / "test_2k.tsv", column=2)  # PAWS-X, where NS is no sentence
    assert text.columns == (["Hallo", "B"], ["Bonjour", "C"])


def test_tatoeba_pairs_each_language_with_english(tatoeba_folder: Path) -> None:
    texts = read(tatoeba_folder)  # German and Chinese are of those shown, Swahili is not
    assert [text.languages for text in texts] == [("de", "en"), ("zh", "en")] and len(texts[0].files) == 2
    assert texts[0].columns[1][0] == "Maria has lived in Berlin since 1998."
    assert languages_of(read(tatoeba_folder, "all")) == ["de", "en", "sw", "zh"]
    assert languages_of(read(tatoeba_folder, "swh,en")) == ["en", "sw"]
    write_tatoeba(tatoeba_folder, "fra", [("un", "one"), ("un", "one again")])
    with pytest.raises(UserError, match=r"tatoeba.fra-eng.fra: 1 different sentences with a translation"):
        read(tatoeba_folder, "all")


def test_the_published_files_are_read() -> None:
    texts = read(published("tatoeba"))
    assert languages_of(texts) == ["de", "en", "es", "fr", "ja", "ko", "zh"] and len(texts) == 6
    (text,) = read(published("mt/newstest") / "newstest2012.{lang}", "all")
    assert text.languages == ("cs", "de", "en", "fr") and 2900 < len(text) <= 3003
