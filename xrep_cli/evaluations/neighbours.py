"""``xrep-eval neighbours``."""

from __future__ import annotations

import argparse
import sys

from xrep_cli.evaluations import common

DESCRIPTION = """\
The sentences of a text that are nearest to a query by the cosine of their vectors.

  xrep-eval neighbours --path run1/best --query 'Wir trinken Wasser.' --lang de --data corpus.en --data-lang en
  xrep-eval neighbours --path run1/best --query-file queries.en --data part1.en part2.en.gz --top 5 --json near.json

The text may be of any size. A sentence that stands there often, or that is the query itself, is not given again."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser, drop_overlap=False)
    add = parser.add_argument
    add("--data", required=True, nargs="+", metavar="FILE", help="text, a sentence a line")
    add("--query", action="append", default=[], metavar="SENTENCE", help="may be given several times")
    add("--query-file", metavar="FILE", help="queries, one a line")
    add("--lang", help="language of the queries, for an encoder that needs it")
    add("--data-lang", metavar="LANG", help="language of the text; default: that of the queries")
    add("--top", type=int, default=3, metavar="K", help="sentences for each query")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import nearest
    from xrep.evaluation.result import make_result

    queries = nearest.read_queries(options.query, options.query_file)
    encoder = encoders.open()
    languages = {"lang": options.lang, "text_lang": options.data_lang or options.lang}
    hits = nearest.nearest(
        encoder, queries, options.data, top=options.top, **languages, show_progress=sys.stderr.isatty()
    )
    result = make_result(
        "neighbours",
        nearest.values(queries, hits),
        headline={},
        encoder=encoder,
        data=[*options.data, *([options.query_file] if options.query_file else [])],
        settings={"top": options.top, **languages},
        overlap=None,
    )
    return common.Report(result, nearest.table(queries, hits))
