from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.corpus import sentence_pairs
from tests.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation import language_bias
from xrep.evaluation.multilingual import Texts, read_texts
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


def _texts(*languages: str) -> Texts:
    return Texts([{language: [f"{language} {number}" for number in NUMBERS] for language in languages}], [])


def test_removal_takes_the_bias_of_an_encoder_that_has_one() -> None:
    texts = _texts("de", "fr", "zh", "en")
    results = language_bias.evaluate(Biased(2.0), texts, neighbours=3)
    assert (results.languages, results.sentences) == (["de", "en", "fr", "zh"], 40)
    assert results.before.diagonal().min() > 99  # every neighbour has the language of the sentence
    assert results.after.diagonal().max() < 2  # the three neighbours are the three translations
    np.testing.assert_allclose(results.before.sum(axis=1), 100)
    np.testing.assert_allclose(results.after[~np.eye(4, dtype=bool)], 100 / 3, atol=1)
    assert results.unbiased == pytest.approx(100 * 39 / 159)
    fair = language_bias.evaluate(Biased(0.0), texts, neighbours=3)
    assert fair.before.diagonal().max() < 2


def test_components_are_those_of_each_language() -> None:
    encoder, texts = Biased(0.4), _texts("de", "fr", "zh")
    results = language_bias.evaluate(encoder, texts, neighbours=4, components=3)
    sides = []
    for language, sentences in texts.groups[0].items():
        vectors = encoder.encode(sentences, language).astype(np.float64)
        components = np.linalg.svd(vectors, full_matrices=False)[2][:3]
        sides.append(normalize_rows(vectors - vectors @ components.T @ components))
    np.testing.assert_allclose(results.after, 100 * language_shares(sides, 4), atol=0.5)
    assert np.abs(results.after - results.before).max() > 5


def test_the_table_and_the_values_say_the_same() -> None:
    results = language_bias.evaluate(Biased(0.7), _texts("de", "zh"), neighbours=5, components=2)
    values = language_bias.values(results)
    assert values["before"]["de"] == {"de": results.before[0, 0], "zh": results.before[0, 1]}
    assert values["own"]["after"] == pytest.approx(results.after.diagonal().mean())
    lines = language_bias.table(results).splitlines()
    assert "5 nearest neighbours" in lines[0] and "40 sentences of each of 2 languages" in lines[0]
    assert lines[3].split() == ["German", "(de)", f"{results.before[0, 0]:.1f}", f"{results.after[0, 0]:.1f}"]
    assert lines[-1].startswith("overlap: unknown")
    assert list(language_bias.headline(results)) == ["own language of 2", "own language of 2, without 2 components"]


def test_every_language_gives_as_many_sentences_and_english_comes_in_turn() -> None:
    groups = [{"de": [f"de {i}" for i in range(30)], "en": [f"en {i}" for i in range(30)]}]
    groups += [{"fr": [f"fr {i}" for i in range(20)], "en": [f"en {i}" for i in (10, 39, *range(11, 29))]}]
    asked = {}

    class Listening(Biased):
        def encode(self, sentences: list[str], lang: str | None = None, **options) -> np.ndarray:
            asked[lang] = list(sentences)
            return super().encode(sentences, lang)

    results = language_bias.evaluate(Listening(1.0), Texts(groups, []), neighbours=3)
    assert {language: len(sentences) for language, sentences in asked.items()} == dict.fromkeys(asked, 16)
    assert asked["de"] == groups[0]["de"][:16] and results.sentences == 16
    assert asked["en"][:4] == ["en 0", "en 39", "en 2", "en 12"]  # rows are German, French, German, French
    assert len(set(asked["en"])) == 16
    language_bias.evaluate(Listening(1.0), Texts(groups, []), neighbours=3, limit=7)
    assert {len(sentences) for sentences in asked.values()} == {7}


def test_what_was_trained_on_is_left_out_of_every_language(tmp_path: Path) -> None:
    encoder, hashes = Biased(1.0), tmp_path / "training_hashes.npy"
    np.save(hashes, np.unique(sentence_hashes(["DE 3", "zh 5", "de 5", "fr 1"])))
    encoder.training_hashes = hashes
    texts = _texts("de", "zh")
    assert language_bias.evaluate(encoder, texts).overlap == Overlap(2, 40)  # rows 3 and 5
    results = language_bias.evaluate(encoder, texts, drop_overlap=True)
    assert (results.sentences, results.overlap) == (38, Overlap(2, 40, dropped=True))
    english = {"en": [f"en {i}" for i in range(40)]}
    apart = Texts([_texts("de").groups[0] | english, _texts("zh").groups[0] | english], [])
    results = language_bias.evaluate(encoder, apart, drop_overlap=True)
    assert (results.sentences, results.overlap) == (38, Overlap(3, 120, dropped=True))  # German lost 2, Chinese 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": 80}, "--neighbours 80, but 40 sentences of each of 2 languages; give 1 to 79"),
        ({"neighbours": 0}, "--neighbours 0"),
        ({"components": 0}, "--remove-components 0; give at least 1"),
        ({"components": 40}, "--remove-components 40, but 40 sentences .*; give at most 39"),
        ({"components": 68, "limit": 1000}, "--remove-components 68, but 40"),
        ({"limit": 1}, "fewer than 2 sentences of each language; give a larger --sentences"),
        ({"drop_overlap": True}, "no training hashes beside the encoder"),
    ],
)
def test_numbers_out_of_range_are_one_clear_line(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        language_bias.evaluate(Biased(1.0), _texts("de", "zh"), **options)


def _write(folder: Path, **lines: list[str]) -> str:
    for language, sentences in lines.items():
        (folder / f"text.{language}").write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    return str(folder / "text.{lang}")


def test_parallel_files_are_read_and_cleaned(tmp_path: Path) -> None:
    pattern = _write(
        tmp_path,
        deu=["eins", "zwei", "", "eins", "42", "drei"],
        en=["one", "two", "nothing", "one again", "42", "three"],
        cmn=["一", "二", "无", "又一", "42", "二"],
    )
    texts = read_texts(pattern)
    assert texts.groups == [{"de": ["eins", "zwei"], "en": ["one", "two"], "zh": ["一", "二"]}]
    assert [file.name for file in texts.files] == ["text.deu", "text.en", "text.cmn"]
    assert read_texts(pattern, "eng,de").groups == [{"de": ["eins", "zwei", "drei"], "en": ["one", "two", "three"]}]
    for language, sentence in (("de", "Hallo"), ("fr", "Salut")):
        rows = f"id\tsentence1\n1\t{sentence} A\n2\t{sentence} B\n"
        (tmp_path / f"test-{language}.tsv").write_text(rows, encoding="utf-8")
    tables = read_texts(str(tmp_path / "test-{lang}.tsv"), column=2)  # the header says the same in all languages
    assert tables.groups == [{"de": ["Hallo A", "Hallo B"], "fr": ["Salut A", "Salut B"]}]


def test_tatoeba_pairs_each_language_with_english(tatoeba_folder: Path) -> None:
    texts = read_texts(str(tatoeba_folder))  # German and Chinese are among those shown, Swahili is not
    assert [list(group) for group in texts.groups] == [["de", "en"], ["zh", "en"]]
    assert texts.groups[0]["en"][0] == "Maria has lived in Berlin since 1998." and len(texts.files) == 4
    assert read_texts(str(tatoeba_folder), "all").languages == ["de", "en", "sw", "zh"]
    assert read_texts(str(tatoeba_folder), "swh,en").languages == ["en", "sw"]
    for file in [*tatoeba_folder.glob("*deu*"), *tatoeba_folder.glob("*cmn*")]:
        file.unlink()
    assert read_texts(str(tatoeba_folder)).languages == ["en", "sw"]


@pytest.mark.parametrize(
    ("data", "languages", "message"),
    [
        ("text.{lang}", "de,ru", "no sentences of ru; it holds de,en,fr"),
        ("text.{lang}", "de", "sentences of fewer than 2 languages"),
        ("text.{lang}", "all", r"text.fr:3: 2 lines, but text.(de|en) has 3; line i of one must translate"),
        ("none.{lang}", None, "sentences of fewer than 2 languages"),
        ("{lang}/{lang}", None, "{lang} stands more than once"),
        ("absent", None, "absent: no such folder"),
        ("tatoeba", None, "tatoeba.deu-eng.eng: no such file"),
        ("twice.{lang}", None, "twice.deu: .*twice.de is of the same language"),
        ("blank.{lang}", None, "0 different sentences with a translation"),
        ("short-{lang}.tsv", None, "short-de.tsv:2: 1 columns, but --column 2"),
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
        read_texts(str(tmp_path / data), languages, 2 if "short" in data else 1)
    assert "\n" not in str(error.value)


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
    assert result["settings"] == {"languages": ["de", "en"], "sentences": 25, "neighbours": 4, "remove_components": 1}
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
    texts = read_texts(str(published_tatoeba))
    assert texts.languages == ["de", "en", "es", "fr", "ja", "ko", "zh"] and len(texts.groups) == 6
    newstest = published_tatoeba.parent / "mt" / "newstest"
    if newstest.is_dir():
        texts = read_texts(str(newstest / "newstest2012.{lang}"), "all")
        assert texts.languages == ["cs", "de", "en", "fr"] and 2900 < len(texts.groups[0]["cs"]) <= 3003
