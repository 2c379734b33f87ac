"""Translator: sentences in, translations out in their order; and checkpoints that are no translators."""

from pathlib import Path

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.translators import write_translator
from xrep.errors import ConfigError, UserError
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.translator import Translator
from xrep.kernels.precision import multiplies_bfloat16
from xrep.text.sides import tokenizer_of

GERMAN = [" ".join(source.split()[: 1 + i % 8]) for i, (source, _) in enumerate(sentence_pairs(30))]


@pytest.mark.slow
def test_translations_come_in_order_whatever_the_batches(loaded: Translator) -> None:
    sentences = [*GERMAN[:12], "", "  \t ", *GERMAN[12:16], GERMAN[3]]
    options = DecodingOptions(beam=3, nbest=2, max_length_b=15)
    found = loaded.translate(sentences, options=options)
    assert [[one.text for one in found[row]] for row in (12, 13)] == [[""], [""]]
    assert found[12][0].score == 0 and found[12][0].tokens == found[12][0].token_scores == []
    assert [a.tokens for a in found[-1]] == [a.tokens for a in found[3]]
    tokenizer = tokenizer_of(loaded.tokenizers, "target")
    for sentence, best in zip(sentences, found, strict=True):
        (alone,) = loaded.translate([sentence], options=options, max_tokens=1)
        assert [one.tokens for one in best] == [one.tokens for one in alone]
        assert [one.score for one in best] == pytest.approx([one.score for one in alone], abs=1e-5)
        assert [one.text for one in best] == [tokenizer.decode(one.tokens) for one in best]
    assert len({best[0].text for best in found}) > 8
    assert loaded.translate([]) == []


def test_batches_are_bounded(loaded: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []
    model = type(loaded.model)
    begin = model.begin
    monkeypatch.setattr(model, "begin", lambda *given: shapes.append(given[1].tokens.shape) or begin(*given))
    options = DecodingOptions(beam=4, max_length_b=3)
    loaded.translate(GERMAN, options=options, max_tokens=400)
    assert sum(rows for rows, _ in shapes) == len(GERMAN) and max(rows * width * 4 for rows, width in shapes) <= 400
    padding = sum(rows * width for rows, width in shapes) / sum(len(ids) + 2 for ids in loaded.read(GERMAN).tokens)
    assert padding < 1.2
    shapes.clear()
    monkeypatch.setattr("xrep.inference.generation.translator.LOGITS", 5 * 4 * 120)
    loaded.translate(GERMAN, options=options, max_tokens=10**6)
    assert {rows for rows, _ in shapes} == {5}


def test_sentences_that_are_too_long_are_cut(loaded: Translator) -> None:
    most = loaded.text.max_length - 2
    long = " ".join(["das schwere Buch"] * 3000)
    source = loaded.read(["Haus", long, "", "schwere привет мир", "привет мир"])
    assert (source.cut, source.unknown) == ([1], [4]) and len(source.tokens[1]) == most
    options = DecodingOptions(beam=2, max_length_b=5)
    tokenizer = tokenizer_of(loaded.tokenizers, "source")
    found = loaded.translate(source, options=options)
    (same,) = loaded.translate([tokenizer.decode(source.tokens[1])], options=options)
    assert found[1][0].tokens == same[0].tokens


@pytest.mark.skipif(not multiplies_bfloat16(), reason="this processor computes in float32 instead")
def test_bfloat16_is_near(translator: Path, loaded: Translator) -> None:
    half = Translator.load(translator, device="cpu", dtype="bfloat16")
    assert next(half.model.parameters()).dtype == torch.bfloat16
    options = DecodingOptions(beam=1, max_length_b=1)
    pairs = zip(half.translate(GERMAN, options=options), loaded.translate(GERMAN, options=options), strict=True)
    differences = [abs(a[0].score - b[0].score) for a, b in pairs]
    assert 0 < sorted(differences)[len(differences) // 2] < 0.1


def test_several_target_languages(tmp_path: Path) -> None:
    loaded = Translator.load(write_translator(tmp_path / "best", languages=(["de"], ["en", "fr"])), device="cpu")
    for language, message in (
        (None, "the model has several target languages; give `target_lang`, one of en, fr"),
        ("cs", "the model does not translate into 'cs'; known: en, fr"),
        ("en-fr", "`target_lang` en-fr: a pair, where each language is named alone"),
    ):
        with pytest.raises(UserError, match=message):
            loaded.translate(["Haus"], language)
    options = DecodingOptions(max_length_b=20)
    english, french = (loaded.translate(GERMAN, language, options) for language in ("en", "fra"))
    assert english != french


def test_bad_calls(loaded: Translator) -> None:
    with pytest.raises(TypeError, match="a list of sentences"):
        loaded.translate("Haus")
    with pytest.raises(UserError, match="`beam` 1000 is more than the [0-9]+ subwords of the vocabulary; 4 to 10"):
        loaded.translate(["Haus"], options=DecodingOptions(beam=1000))
    with pytest.raises(UserError, match="`min_length` 9999 is more than the [0-9]+ subwords that the model writes"):
        loaded.translate(["Haus"], options=DecodingOptions(min_length=9999))
    with pytest.raises(ConfigError, match="`nbest` 9 is more than"):
        loaded.translate(["Haus"], options=DecodingOptions(nbest=9))
