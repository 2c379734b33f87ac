"""``xrep-eval bucc``."""

from __future__ import annotations

import argparse
import sys

from xrep_cli.evaluations import common

DESCRIPTION = """\
BUCC: mine translations from two monolingual texts. --data holds zh-en.training.zh, zh-en.training.en (lines
id<TAB>sentence) and zh-en.training.gold (lines id<TAB>id), likewise zh-en.test.*, and so on.

Protocol: candidates by margin score, one target for each source; those from a threshold on are extracted. The threshold
is the one with the best F1 on the training (or dev) split, applied to the test split.

  xrep-eval bucc --path run1/best --data bucc2018/ --langs de-en,zh-en
  xrep-eval bucc --path run1/best --data bucc2018/ --margin distance --neighbours 3 --json out.json
  xrep-eval bucc --path run1/best --data sample/ --oracle       # one split: its own best threshold, labelled so"""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="folder of the files")
    add("--langs", default="all", help="pairs of languages (de-en,zh-en), or all that are there")
    add("--split", metavar="NAME", help="measure this one (default: test, or the only one)")
    add("--margin", choices=("absolute", "distance", "ratio"), default="ratio", help="score by the cosine, or by its "
        "distance from or ratio to the mean cosine of both sides' neighbours")  # fmt: skip
    add("--neighbours", type=int, default=4, metavar="K", help="neighbours in each direction")
    add("--retrieval", choices=("forward", "backward", "intersection", "max"), default="max", help="candidates: the "
        "best target of each source, the best source of each target, both, or either")  # fmt: skip
    add("--one-to-one", action="store_true", help="use each target once, too, for its best pair")
    add("--threshold", type=float, metavar="SCORE", help="extract pairs from this score on")
    add("--oracle", action="store_true", help="take the best threshold of the measured split itself; labelled so")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.errors import UserError
    from xrep.evaluation import bucc
    from xrep.evaluation.result import make_result
    from xrep.evaluation.text_table import table

    if options.oracle and options.threshold is not None:
        raise UserError("--oracle and --threshold", cure="give one of them")
    settings = {
        name: getattr(options, name)
        for name in ("margin", "neighbours", "retrieval", "one_to_one", "threshold", "oracle")
    }
    how = bucc.Options(**settings)
    tests, tunings = [], []
    for pair, gold in bucc.select(options.langs, options.data).items():
        split, tuning = bucc.plan(gold, pair, how, options.split)
        tests.append(bucc.read_split(gold[split]))
        tunings.append(bucc.read_split(gold[tuning]) if tuning else None)
    encoder = encoders.open()
    kept, overlap = bucc.leave_out_overlap(tests, encoder.training_hashes, options.drop_overlap)
    results = [
        bucc.measure(encoder, test, tuning, how, sys.stderr.isatty())
        for test, tuning in zip(kept, tunings, strict=True)
    ]
    header = ["languages", "split", "precision", "recall", "F1", "extracted", "gold", "threshold", "found on"]
    rows = []
    for result in results:
        scores = result.scores
        figures = [f"{figure:.2f}" for figure in (scores.precision, scores.recall, scores.f1)]
        counts = [str(scores.extracted), str(scores.gold), f"{result.threshold:.4f}", result.tuned_on]
        rows.append([result.pair, result.split, *figures, *counts])
    mean = sum(result.scores.f1 for result in results) / len(results)
    oracle = " (oracle)" if how.oracle else ""
    result = make_result(
        "bucc",
        bucc.values(results),
        headline={f"mean F1{oracle}": mean},
        encoder=encoder,
        data=[file for split in (*tests, *filter(None, tunings)) for file in split.files],
        settings=settings,
        overlap=overlap,
    )
    text = f"{table(header, rows)}\nmean F1{oracle}: {mean:.2f}\n{overlap.line}"
    return common.Report(result, text)
