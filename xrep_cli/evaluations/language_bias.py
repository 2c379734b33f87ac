"""``xrep-eval language-bias``."""

from __future__ import annotations

import argparse
import sys

from xrep_cli.evaluations import common

DESCRIPTION = """\
Share of each language among the nearest neighbours of a sentence, in a pool with as many sentences of each language;
before and after the first principal component of each language is taken out of its vectors.

  xrep-eval language-bias --path run1/best --data tatoeba/ --langs de,fr,zh --plot bias.png
  xrep-eval language-bias --path run1/best --data 'pawsx/test-{lang}.tsv'
  xrep-eval language-bias --path run1/best --data 'newstest/newstest2012.{lang}' --sentences 500

--data is the folder of the Tatoeba test, or files whose line i translates line i of the others, with {lang} in place of
the language. Parallel files are the better test: each language then says the same."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser, plot=True)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR|PATTERN", help="folder of the Tatoeba test, or path with {lang} in it")
    add(
        "--langs",
        help="codes (de,fr or deu,fra) or all; default: those of de en es fr ja ko zh that are there, else all",
    )
    add("--column", type=int, default=1, metavar="N", help="column of the sentence in .tsv files")
    add("--neighbours", type=int, default=10, metavar="K", help="neighbours of each sentence that are looked at")
    add("--remove-components", type=int, default=1, metavar="N", help="principal components taken out of each language")
    add("--sentences", type=int, default=1000, metavar="N", help="at most so many of each language, the first ones")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import language_bias, plots
    from xrep.evaluation.multilingual import read_texts
    from xrep.evaluation.result import make_result

    texts = read_texts(options.data, options.langs, options.column)
    encoder = encoders.open()
    results = language_bias.evaluate(
        encoder,
        texts,
        neighbours=options.neighbours,
        components=options.remove_components,
        limit=options.sentences,
        drop_overlap=options.drop_overlap,
        show_progress=sys.stderr.isatty(),
    )
    if options.plot is not None:
        plots.plot_language_bias(results, options.plot)
    result = make_result(
        "language-bias",
        language_bias.values(results),
        headline=language_bias.headline(results),
        encoder=encoder,
        data=texts.files,
        settings={
            "languages": results.languages,
            "sentences": results.sentences,
            "neighbours": results.neighbours,
            "remove_components": results.components,
        },
        overlap=results.overlap,
    )
    return common.Report(result, language_bias.table(results))
