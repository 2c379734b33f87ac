"""``xrep-eval scatter``."""

from __future__ import annotations

import argparse

from xrep_cli.evaluations import common

DESCRIPTION = """\
A picture of sentences that translate each other, with lines between translations, or of the tokens of such sentences.

  xrep-eval scatter --path run1/best --data tatoeba/ --langs de,fr --plot sentences.png
  xrep-eval scatter --path run1/best --data tatoeba/ --langs ar --tokens --sentences 100 --plot tokens.png
  xrep-eval scatter --path run1/best --data 'newstest2012.{lang}' --method tsne --sentences 30 --plot sentences.png

--data is the folder of the Tatoeba test, whose languages are paired with English, or files whose line i translates
line i of the others, with {lang} in place of the language. Random lines of them are drawn. The tokens of a few
sentences are written beside their points."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser, plot=True, drop_overlap=False)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR|PATTERN", help="folder of the Tatoeba test, or path with {lang} in it")
    add(
        "--langs",
        help="codes (de,fr or deu,fra) or all; default: those of de en es fr ja ko zh that are there, else all",
    )
    add("--column", type=int, default=1, metavar="N", help="column of the sentence in .tsv files")
    add("--method", choices=("pca", "tsne"), default="pca", help="principal components, or t-SNE of scikit-learn")
    add("--tokens", action="store_true", help="show the tokens of the sentences; not with ready vectors")
    add("--sentences", type=int, default=15, metavar="N", help="sentences of each language, drawn at random")
    add("--seed", type=int, default=0, help="of this draw and of t-SNE")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.errors import UserError
    from xrep.evaluation import plots, scatter
    from xrep.evaluation.multilingual import read_texts
    from xrep.evaluation.result import make_result

    if options.plot is None and not options.list_sentences:
        raise UserError("nothing to draw to", cure="give --plot FILE.png")
    if options.tokens and options.list_sentences:
        raise UserError("--tokens with --list-sentences: ready vectors have no tokens", cure="leave one of the two out")
    scatter.check_method(options.method)
    texts = read_texts(options.data, options.langs, options.column)
    groups = scatter.draw_rows(texts, options.sentences, options.seed)
    make = scatter.token_scatter if options.tokens else scatter.sentence_scatter
    encoder = encoders.open()
    found = make(encoder, groups, options.method, options.seed)
    text = scatter.text(found)
    if options.plot is not None:
        undrawn = plots.plot_scatter(found, options.plot)
        text = "\n".join([text, *undrawn, f"picture: {options.plot}"])
    result = make_result(
        "scatter",
        scatter.values(found),
        headline={},
        encoder=encoder,
        data=texts.files,
        settings={
            "method": options.method,
            "tokens": options.tokens,
            "sentences": options.sentences,
            "seed": options.seed,
        },
        overlap=None,
    )
    return common.Report(result, text)
