"""``xrep-eval translation``."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from xrep.errors import ConfigError
from xrep.inference.generation.options import SearchOptions
from xrep.metrics.translation import TOKENIZERS
from xrep_cli.evaluations import common

if TYPE_CHECKING:
    from xrep.evaluation.translation import TranslationTest

DESCRIPTION = """\
Translate a test set from each of its languages into one: BLEU and chrF of sacrebleu, with their signatures.

  xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de
  xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de,cs,fr --target-lang en
  xrep-eval translation --path nmt/best --data 'iwslt14/test.tok.{lang}' --langs de --tokenize none

--data names files whose line i translates line i of the others, with {lang} in place of the language (.gz and .xz,
too). A language that the model was not trained to translate from is marked zero-shot: transfer from the others.

Papers that give tokenised BLEU tokenise both sides by Moses and score by its multi-bleu.perl. With text that is
tokenised so, --tokenize none prints the script's line as well."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add, given = parser.add_argument, SearchOptions()
    add("--path", required=True, metavar="CHECKPOINT", help="a translation model, such as nmt/best")
    add("--data", required=True, metavar="PATTERN", help="the files, with {lang} in place of the language")
    add("--langs", default="all", help="languages to translate from (de,fr or deu,fra), or all that are there")
    add("--target-lang", metavar="LANG", help="the language to translate into, where the model has several")
    add("--beam", type=int, default=given.beam, metavar="N", help="hypotheses that are followed at once; 1: greedy")
    add(
        "--lenpen",
        type=float,
        default=given.length_penalty,
        metavar="A",
        help="exponent of the length that divides scores: above 1 longer translations win",
    )
    add(
        "--lenpen-form",
        choices=("fairseq", "gnmt"),
        default=given.length_penalty_form,
        help="length^A, or ((5 + length) / 6)^A as in the GNMT paper",
    )
    add(
        "--max-length-a",
        type=float,
        default=given.max_length_a,
        metavar="A",
        help="a translation of x subwords has at most A x + B; what the model was trained on is a limit as well",
    )
    add("--max-length-b", type=int, default=given.max_length_b, metavar="B", help="see --max-length-a")
    add("--max-tokens", type=int, default=4096, metavar="N", help="subwords, times --beam, translated at once")
    add("--tokenize", choices=TOKENIZERS, default="13a", help="how BLEU cuts text into words; none: it is cut already")
    add("--save-translations", metavar="DIR", help="write the translations of each language, as de-en.en")
    common.add_common_options(parser)


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import translation
    from xrep.evaluation.result import make_result

    search = _search_options(options)
    system = translation.System(options.path, options.plugin)
    tests = translation.read_tests(options.data, options.langs, system.target(options.target_lang))
    results = translation.evaluate(
        system,
        tests,
        search,
        tokenize=options.tokenize,
        max_tokens=options.max_tokens,
        drop_overlap=options.drop_overlap,
        keep=functools.partial(_save, Path(options.save_translations)) if options.save_translations else None,
        show_progress=sys.stderr.isatty(),
    )
    names = ("beam", "lenpen", "lenpen_form", "max_length_a", "max_length_b", "tokenize")
    result = make_result(
        "translation",
        translation.values(results),
        headline=translation.headline(results),
        encoder=system,
        data=list(dict.fromkeys(file for test in tests for file in test.files)),
        settings={"languages": [test.name for test in tests], **{name: getattr(options, name) for name in names}},
        overlap=translation.overlap_of(results),
    )
    return common.Report(result, translation.table(results, tokenized=options.tokenize == "none"))


def _search_options(options: argparse.Namespace) -> SearchOptions:
    """How to translate.

    Raises:
        ConfigError: an option makes no sense.
    """
    search = SearchOptions(
        beam=options.beam,
        length_penalty=options.lenpen,
        length_penalty_form=options.lenpen_form,
        max_length_a=options.max_length_a,
        max_length_b=options.max_length_b,
    )
    problems = search.problems()
    if options.max_tokens < 1:
        problems.append(f"max_tokens must be at least 1, not {options.max_tokens}")
    if problems:
        raise ConfigError([f"--{p.replace('length_penalty', 'lenpen').replace('_', '-', 2)}" for p in problems])
    return search


def _save(folder: Path, test: TranslationTest, translations: list[str]) -> None:
    from xrep.files import write_aside

    folder.mkdir(exist_ok=True)
    with write_aside(folder / f"{test.name}.{test.languages[1]}") as aside:
        aside.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
