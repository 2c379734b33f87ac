"""``xrep-eval translation`` on runs that were trained here."""

import gzip
import json
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU, CHRF

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, spanish_pairs, write_corpus, write_lines
from tests.support.once import made_once
from xrep.evaluation.translation import TranslationQuality
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.translator import Translator
from xrep.metrics.translation import multi_bleu
from xrep_cli.train import main as train

pytestmark = pytest.mark.slow
SIZES = "--layers 1 --hidden-size 32 --heads 2 --feedforward-size 64 --max-positions 64 --max-length 64 --device cpu"
RUN = (
    "--task translation --criterion label_smoothed_cross_entropy --decoder-layers 1 --max-tokens 400 --vocab-size 120 "
    "--lr 8e-3 --lr-scheduler constant --warmup-steps 20 --max-steps 120 --validate-every 60 --keep-last 2 "
    "--max-sentences 20 --beam 2 --norm pre --no-tensorboard --save-dir"
)
TEST = [*sentence_pairs(720)[660:690], *sentence_pairs(10)]
"""The last ten pairs are in the training text."""
GERMAN, ENGLISH = (list(side) for side in zip(*TEST, strict=True))
SPANISH = [*(2 * [spanish for spanish, _ in spanish_pairs()])[: len(TEST) - 1], ""]


@pytest.fixture(scope="module")
def data() -> Path:
    """German and English training text, test text that also has Spanish, which is in no training text, and a run, which
    uses the model and the validation of its task."""

    def make(folder: Path) -> None:
        write_corpus(folder / "corpus")
        write_lines(folder / "test" / "set.de", GERMAN)
        write_lines(folder / "test" / "set.en", ENGLISH)
        (folder / "test" / "set.es").write_bytes(gzip.compress("".join(f"{line}\n" for line in SPANISH).encode()))
        assert train([str(folder / "corpus"), *SIZES.split(), *RUN.split(), str(folder / "run")]) == 0

    return made_once("translation", make)


@pytest.fixture
def given(data: Path) -> list[object]:
    return ["--path", data / "run" / "best", "--data", data / "test" / "set.{lang}"]


def test_scores_of_each_language(data: Path, given: list[object], cli: Commands) -> None:
    best = json.loads((data / "run" / "summary.json").read_text())["best"]
    assert best["metric"] == "bleu" and best["value"] > 1
    options = "--langs deu,es --beam 2 --json out.json --save-translations hypotheses".split()
    printed = cli("eval", "translation", *given, *options).out
    result = json.loads((cli.folder / "out.json").read_text())
    translator, languages = Translator.load(data / "run" / "best"), result["values"]["tables"]
    for language, lines in (("de", GERMAN), ("es", SPANISH)):
        found = [several[0].text for several in translator.translate(lines, options=DecodingOptions(beam=2))]
        written = (cli.folder / "hypotheses" / f"{language}-en.en").read_text(encoding="utf-8").split("\n")
        assert written == [*found, ""]
        own = languages[f"{language}-en"]
        assert own["bleu"] == pytest.approx(BLEU(force=True).corpus_score(found, [ENGLISH]).score)
        assert own["chrf"] == pytest.approx(CHRF().corpus_score(found, [ENGLISH]).score)
        assert own["examples"] == len(TEST) and own["zero_shot"] == (language == "es")
        assert "tok:13a" in own["signatures"]["BLEU"] and f"BLEU|{own['signatures']['BLEU']}" in printed
    assert found[-1] == "" and own["overlap"]["found"] == 10  # named by its references
    scores = {language: own["bleu"] for language, own in languages.items()}
    assert scores["de-en"] > scores["es-en"] and scores["de-en"] > 1
    assert result["values"]["averages"]["mean of 2"]["bleu"] == pytest.approx(sum(scores.values()) / 2)
    assert result["headline"]["BLEU de-en"] == scores["de-en"] and result["settings"]["beam"] == 2
    assert [Path(file).name for file in result["data"]] == ["set.de", "set.en", "set.es"]
    assert "German (de)" in printed and "Spanish (es), zero-shot" in printed and "mean of 2" in printed
    assert "overlap: 20 of 80 test examples" in printed and "into English (en)" in printed
    assert "multi-bleu" not in printed and "cut" not in printed
    assert printed.splitlines()[1].split() == ["source", "sentences", "BLEU", "chrF2"]


def test_the_defaults_of_the_search_are_those_of_generation() -> None:
    config, search = TranslationQuality.Config(data=""), DecodingOptions()
    given = config.beam, config.lenpen, config.lenpen_form, config.max_length_a, config.max_length_b
    expected = search.beam, search.length_penalty, search.length_penalty_form, search.max_length_a, search.max_length_b
    assert given == expected


def test_tokenised_text_is_scored_as_moses_does(data, given, cli, measure):
    line = ["translation", *given, *"--langs de --beam 1 --tokenize none --drop-overlap --target-lang eng".split()]
    printed = cli("eval", *line).out
    found = Translator.load(data / "run" / "best").translate(GERMAN[:30], options=DecodingOptions(beam=1))
    expected = multi_bleu([several[0].text for several in found], ENGLISH[:30])
    assert f"multi-bleu de-en: {expected}\n" in printed and "tok:none" in printed
    assert "overlap: 10 of 40 test examples were in the training text, left out" in printed
    own = measure(*line)["values"]["tables"]["de-en"]
    assert own["multi_bleu"]["text"] == str(expected) and own["examples"] == 30
    assert own["multi_bleu"]["value"] == expected.score


def test_averaged_checkpoints_and_all_languages(data, given, cli, measure):
    assert cli("export", "--path", data / "run", *"--average 2 --format xrep --output mean".split()).code == 0
    found = measure("translation", "--path", "mean", *given[2:])
    assert list(found["values"]["tables"]) == ["de-en", "es-en"]  # the target is not a source
    assert found["overlap"]["found"] == 20  # the hashes were copied


@pytest.mark.parametrize(("line", "message"), [
    ("--data de-en.{lang} --json de-en.de", "--json is the same file as --data"),
    ("--data de-en.{lang} --save-translations .", "de-en.en: --save-translations would replace this file"),
    ("--data zh/{lang}.txt", "zh/zho_Hant.txt: is of the same language as zh/zho_Hans.txt; leave zh out of --langs"),
])  # fmt: skip
def test_no_text_is_replaced_or_left_out(given: list[object], cli: Commands, line: str, message: str) -> None:
    for name in ("de-en.de", "de-en.en", "zh/en.txt", "zh/zho_Hans.txt", "zh/zho_Hant.txt"):
        write_lines(cli.folder / name, ENGLISH[:3])
    done = cli("eval", "translation", *given[:2], *line.split())
    assert done.code == 2 and message in done.err and not [name for name in done.wrote if name.startswith("de-en")]


def test_long_sentences_are_told_and_known_ones_need_others(given: list[object], cli: Commands) -> None:
    for side, language in enumerate(("de", "en")):
        lines = [pair[side] for pair in sentence_pairs(3)]
        write_lines(cli.folder / f"x.{language}", [lines[0], lines[1] * (20 if language == "de" else 1), lines[2]])
    line = ["translation", *given[:2], "--data", "x.{lang}"]
    assert "longer than the model reads, and cut: 1 of de\n" in cli("eval", *line).out
    done = cli("eval", *line, "--drop-overlap")
    assert done.code == 2 and "3 of 3 examples of de-en were in the training text, too few are left" in done.err
