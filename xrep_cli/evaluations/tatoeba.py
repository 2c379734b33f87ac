"""``xrep-eval tatoeba``."""

from __future__ import annotations

import argparse
import functools
import sys

from xrep_cli.evaluations import common

DESCRIPTION = """\
Tatoeba test in LASER's layout: --data holds tatoeba.deu-eng.deu and tatoeba.deu-eng.eng, and so on.

Protocol: for each sentence, the nearest neighbour by cosine among all sentences of the other side; right if it
stands on the same line. Accuracy in percent, from the language into English (xx-en) and back (en-xx).

  xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr
  xrep-eval tatoeba --path run1/best --data tatoeba/ --random-baseline --json out.json --plot out.png
  xrep-eval tatoeba --path run1/best --data tatoeba/ --remove-components 1 --margin ratio

Averages over 14, 28, 36 and 11 languages are those of the literature, given when all their languages were measured."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser, plot=True)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="folder of the test files")
    add("--langs", default="all", help="language codes (de,fr or deu,fra), or 14, 28, 36 or 11, or all that are there")
    add(
        "--margin",
        choices=("absolute", "distance", "ratio"),
        default="absolute",
        help="score by the cosine, or by its distance from or ratio to the mean cosine of both sides' neighbours",
    )
    add("--neighbours", type=int, default=4, metavar="K", help="neighbours in these means")
    add(
        "--remove-components",
        type=int,
        default=0,
        metavar="N",
        help="take the first N principal components of each language (of its sentences in the test) out of its vectors",
    )
    add(
        "--save-embeddings",
        metavar="DIR",
        help="write the vectors compared as {xxx}.{xxx}.npy and {xxx}.eng.npy: float32 [N, D], L2-normalised, in line "
        "order",
    )
    add("--random-baseline", action="store_true", help="measure the same architecture with random weights, too")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import plots, report, tatoeba
    from xrep.evaluation.result import make_result
    from xrep.files import check_output

    if options.save_embeddings is not None:
        check_output(options.save_embeddings, folder=True)
    codes = tatoeba.select(options.langs, options.data)
    pools = [tatoeba.read_pool(options.data, code) for code in codes]
    scoring = tatoeba.Scoring(options.margin, options.neighbours, options.remove_components)
    scoring.check(pools)
    encoder = encoders.open()
    results = tatoeba.evaluate(
        encoder,
        pools,
        scoring,
        random_encoder=encoders.open(random_weights=True) if options.random_baseline else None,
        drop_overlap=options.drop_overlap,
        keep=functools.partial(report.save_embeddings, options.save_embeddings) if options.save_embeddings else None,
        show_progress=sys.stderr.isatty(),
    )
    if options.plot is not None:
        plots.plot_tatoeba(results, options.plot)
    result = make_result(
        "tatoeba",
        report.values(results),
        headline=report.headline(results),
        encoder=encoder,
        data=[file for code in codes for file in tatoeba.files_of(options.data, code)],
        settings={"languages": list(results.pairs), **scoring.as_dict()},
        overlap=results.overlap,
    )
    return common.Report(result, report.table(results))
