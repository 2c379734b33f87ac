"""``xrep-eval translation`` on runs that were trained here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF

from tests.support.corpus import sentence_pairs, spanish_pairs, write_corpus
from tests.support.encoders import write_encoder
from xrep import SentenceEncoder
from xrep.evaluation.translation import TranslationQuality
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.translator import Translator
from xrep.kernels.processor import multiplies_int8
from xrep.metrics.translation import multi_bleu
from xrep.models.directory import open_checkpoint
from xrep_cli.eval import main as evaluate
from xrep_cli.export import main as export
from xrep_cli.train import main as train

SIZES = {
    "layers": 1, "decoder_layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64, "max_positions": 64,
    "max_length": 64,
}  # fmt: skip
TEST = [*sentence_pairs(720)[660:690], *sentence_pairs(10)]
"""The last ten pairs are in the training text."""
SPANISH = [spanish for spanish, _ in spanish_pairs()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return German and English training text, and test text that also has Spanish, which the model has never seen."""
    folder = tmp_path_factory.mktemp("translation")
    write_corpus(folder / "corpus")
    (folder / "test").mkdir()
    for side, language in enumerate(("de", "en")):
        text = "".join(pair[side] + "\n" for pair in TEST)
        (folder / "test" / f"set.{language}").write_text(text, encoding="utf-8")
    spanish = "".join(f"{line}\n" for line in [*SPANISH, *SPANISH][: len(TEST) - 1]) + "\n"
    (folder / "test" / "set.es").write_bytes(gzip.compress(spanish.encode()))
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run uses the model and the validation of its task."""
    directory = tmp_path_factory.mktemp("run") / "run"
    given = {
        "task": "translation", "criterion": "label_smoothed_cross_entropy", "max_tokens": 400, "vocab_size": 120,
        "lr": 8e-3, "lr_scheduler": "constant", "warmup_steps": 20, "max_steps": 120, "validate_every": 60,
        "keep_last": 2, "max_sentences": 20, "beam": 2, "norm": "pre", "device": "cpu", "save_dir": directory, **SIZES,
    }  # fmt: skip
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert train([str(data / "corpus"), *options, "--no-tensorboard"]) == 0
    return directory


def measured(capsys: pytest.CaptureFixture, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate(["translation", *map(str, arguments), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_scores_of_each_language(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best"]["metric"] == "bleu" and summary["best"]["value"] > 1
    files = {"--json": tmp_path / "out.json", "--save-translations": tmp_path / "hypotheses"}
    arguments = ["--path", run / "best", "--data", data / "test" / "set.{lang}", "--langs", "deu,es", "--beam", 2]
    assert evaluate(["translation", *map(str, arguments), *(str(x) for pair in files.items() for x in pair)]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "out.json").read_text())
    english, translator = [english for _, english in TEST], Translator.load(run / "best")
    sources = {"de": [german for german, _ in TEST], "es": [*SPANISH, *SPANISH][: len(TEST) - 1] + [""]}
    for language, lines in sources.items():
        found = [several[0].text for several in translator.translate(lines, options=SearchOptions(beam=2))]
        written = (tmp_path / "hypotheses" / f"{language}-en.en").read_text(encoding="utf-8").split("\n")
        assert written == [*found, ""]
        own = result["values"]["languages"][language]
        assert own["bleu"] == pytest.approx(BLEU(force=True).corpus_score(found, [english]).score)
        assert own["chrf"] == pytest.approx(CHRF().corpus_score(found, [english]).score)
        assert own["sentences"] == len(TEST) and own["zero_shot"] == (language == "es")
        assert "tok:13a" in own["signatures"]["BLEU"] and f"BLEU|{own['signatures']['BLEU']}" in printed
    assert found[-1] == "" and own["overlap"]["found"] == 10  # named by its references
    values = result["values"]
    assert (
        values["languages"]["de"]["bleu"] > values["languages"]["es"]["bleu"] and values["languages"]["de"]["bleu"] > 1
    )
    assert values["mean"]["bleu"] == pytest.approx(sum(own["bleu"] for own in values["languages"].values()) / 2)
    assert result["headline"]["BLEU de-en"] == values["languages"]["de"]["bleu"]
    assert result["settings"]["languages"] == ["de-en", "es-en"] and result["settings"]["beam"] == 2
    assert [Path(file).name for file in result["data"]] == ["set.de", "set.en", "set.es"]
    assert "German (de)" in printed and "Spanish (es), zero-shot" in printed and "mean of 2" in printed
    assert "overlap: 20 of 80 test examples" in printed and "into English (en)" in printed
    assert "multi-bleu" not in printed and "cut" not in printed


@pytest.mark.skipif(not multiplies_int8(), reason="torch has no exact int8 product for this processor")
def test_a_translator_is_measured_in_int8(data: Path, run: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--path", run / "best", "--data", data / "test" / "set.{lang}", "--langs", "de", "--beam", "1"]
    exact, found = measured(capsys, *arguments), measured(capsys, *arguments, "--precision", "int8")
    assert (exact["settings"]["precision"], found["settings"]["precision"]) == ("float32", "int8")
    assert found["model"]["fingerprint"] != exact["model"]["fingerprint"]
    assert found["headline"]["BLEU de-en"] == pytest.approx(exact["headline"]["BLEU de-en"], abs=3)


def test_the_defaults_of_the_search_are_those_of_generation() -> None:
    config, search = TranslationQuality.Config(data=""), SearchOptions()
    given = config.beam, config.lenpen, config.lenpen_form, config.max_length_a, config.max_length_b
    expected = search.beam, search.length_penalty, search.length_penalty_form, search.max_length_a, search.max_length_b
    assert given == expected


def test_tokenised_text_is_scored_as_moses_does(data: Path, run: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--path", run / "best", "--data", data / "test" / "set.{lang}", "--langs", "de", "--beam", "1"]
    arguments = [*map(str, arguments), "--tokenize", "none", "--drop-overlap", "--target-lang", "eng"]
    capsys.readouterr()
    assert evaluate(["translation", *arguments]) == 0
    printed = capsys.readouterr().out
    pairs = TEST[:30]
    found = Translator.load(run / "best").translate([german for german, _ in pairs], options=SearchOptions(beam=1))
    expected = multi_bleu([several[0].text for several in found], [english for _, english in pairs])
    assert f"multi-bleu de-en: {expected}\n" in printed and "tok:none" in printed
    assert "overlap: 10 of 40 test examples were in the training text, left out" in printed
    values = measured(capsys, *arguments)["values"]["languages"]["de"]
    assert values["multi_bleu"]["text"] == str(expected) and values["sentences"] == 30
    assert values["multi_bleu"]["value"] == expected.value


def test_averaged_checkpoints_and_all_languages(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "mean"
    assert export(["--path", str(run), "--average", "2", "--format", "xrep", "--output", str(out)]) == 0
    arguments = ["--data", data / "test" / "set.{lang}", "--beam", "1"]
    found = measured(capsys, "--path", out, *arguments)
    assert list(found["values"]["languages"]) == ["de", "es"]  # the target is not a source
    one = measured(capsys, "--path", run / "best", *arguments)
    assert found["model"]["fingerprint"] != one["model"]["fingerprint"]
    assert found["overlap"]["found"] == one["overlap"]["found"] == 20  # the hashes were copied


def test_long_sentences_are_told(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    german, english = zip(*sentence_pairs(3), strict=True)
    (tmp_path / "x.de").write_text("".join(f"{line * (1 + 19 * (n == 1))}\n" for n, line in enumerate(german)))
    (tmp_path / "x.en").write_text("".join(f"{line}\n" for line in english))
    assert evaluate(["translation", "--path", str(run / "best"), "--data", str(tmp_path / "x.{lang}")]) == 0
    assert "longer than the model reads, and cut: 1 of de\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--langs", "de,xx"], "set.{lang}: no file of xx; the data has de,en,es"),
        (["--langs", "en"], "set.{lang}: en is the target language; name others with --langs; the data has de,en,es"),
        (["--target-lang", "fr"], "the model does not translate into 'fr'; known: en"),
        (["--data", "test/set.de"], "test/set.de: {lang} occurs nowhere; write it once, in place of the language"),
        (["--data", "test/nothing.{lang}"], "test/nothing.{lang}: no such files; {lang} stands for the language"),
        (["--beam", "0"], "--beam must be at least 1, not 0"),
        (["--lenpen", "nan"], "--lenpen: must be a finite number, not 'nan'"),
        (["--max-length-b", "-1"], "--max-length-b must be at least 0, not -1"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, not 0"),
        (["--save-translations", "absent/out"], "absent: no such folder; make it first"),
        (["--json", "absent/out.json"], "absent: no such folder; make it first"),
        (["--path", "absent"], "absent: no such checkpoint"),
        (["--path", "encoder"], "encoder: not a translation model"),
        (
            ["--data", "uneven/set.{lang}"],
            "uneven/set.de:3: 2 lines, but set.en has 3; line i of one must belong to line i",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(
    data: Path,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    options: list[str],
    message: str,
) -> None:
    (tmp_path / "test").symlink_to(data / "test")
    (tmp_path / "uneven").mkdir()
    for language, lines in (("de", "a\nb\n"), ("en", "a\nb\nc\n")):
        (tmp_path / "uneven" / f"set.{language}").write_text(lines)
    if "encoder" in options:
        write_encoder(tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert evaluate(["translation", "--path", str(run / "best"), "--data", "test/set.{lang}", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1


def test_nothing_is_left_without_the_overlap(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for side, language in enumerate(("de", "en")):
        (tmp_path / f"x.{language}").write_text("".join(pair[side] + "\n" for pair in sentence_pairs(5)))
    arguments = ["--path", str(run / "best"), "--data", str(tmp_path / "x.{lang}"), "--drop-overlap"]
    assert evaluate(["translation", *arguments]) == 2
    assert (
        "5 of 5 examples of de-en were in the training text, too few are left; measure without"
        in capsys.readouterr().err
    )


def test_its_encoder_starts_others(data: Path, run: Path, tmp_path: Path) -> None:
    for task, criterion in (("bitext", "translation_ranking"), ("translation", "label_smoothed_cross_entropy")):
        given = {"task": task, "criterion": criterion, "encoder": run / "best", "max_length": 64, "batch_size": 20}
        given |= {"max_steps": 1, "device": "cpu", "save_dir": tmp_path / task, "lr": 1e-9}
        given |= {"towers": "shared"} if task == "bitext" else {"decoder_layers": 1, "max_sentences": 1}
        options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        assert train([str(data / "corpus"), *options, "--no-tensorboard"]) == 0
        begin = "encoder." if task == "translation" else "encoders.shared."
        theirs = open_checkpoint(run / "best").tensors()
        own = open_checkpoint(tmp_path / task / "best").tensors()
        compared = [name for name in own if name.startswith(begin)]
        assert compared
        for name in compared:
            torch.testing.assert_close(own[name], theirs["encoder." + name.removeprefix(begin)], rtol=0, atol=1e-6)
    vectors = SentenceEncoder.load(tmp_path / "bitext" / "best", device="cpu").encode([german for german, _ in TEST])
    assert vectors.shape == (len(TEST), 32)
