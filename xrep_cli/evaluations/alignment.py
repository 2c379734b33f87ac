"""``xrep-eval alignment``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from xrep_cli.evaluations import common

if TYPE_CHECKING:
    from xrep.evaluation.encoders import Encoder

DESCRIPTION = """\
Alignment, the mean squared distance of pairs that mean the same, and uniformity, the logarithm of the mean of
exp(-2 squared distance) of any two sentences (Wang and Isola, 2020). Lower is better for both.

  xrep-eval alignment --path run1/best --data sts/STSBenchmark/sts-dev.csv
  xrep-eval alignment --path run1 --every-checkpoint --data sts-dev.csv --plot trajectory.png
  xrep-eval alignment --path run1/best --data zh-en=UNv1.0.devset.zh,UNv1.0.devset.en

--data is a file of STS-B, of its translations or of SICK, whose pairs with a score higher than 4 are the positives; or
parallel text, of whose first 1000 pairs the first 250 stay, while the others get another sentence in the language that
is not English, drawn from what follows. A run keeps its last 2 checkpoints, or as many as --keep-last said."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser, plot=True)
    add = parser.add_argument
    add("--data", required=True, metavar="FILE", help="sts-dev.csv and its like, or LANG-LANG=FILE.tsv or =FILE,FILE")
    add("--every-checkpoint", action="store_true", help="--path is a run: measure each of its checkpoints")
    add("--positive-above", type=float, default=4.0, metavar="SCORE", help="scored pairs above it are positives")
    add("--pairs", type=int, default=1000, metavar="N", help="pairs taken of parallel text")
    add("--true-pairs", type=int, default=250, metavar="N", help="of these, how many keep their translation")
    add("--seed", type=int, default=0, help="of the sentences that replace the others' translation")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import alignment, plots
    from xrep.evaluation.result import make_result

    settings = {"above": options.positive_above, "pairs": options.pairs, "true_pairs": options.true_pairs}
    pairs = alignment.read_set(options.data, **settings, seed=options.seed)
    encoder: Encoder | None = None
    if options.every_checkpoint and not options.list_sentences:
        if options.path is None:
            encoders.open()  # says that none is named
        assert options.path is not None
        results = []
        for step, path in alignment.checkpoints(options.path):
            encoder = common.Encoders(options).open(path)  # nobody keeps it: not all are in memory
            results.append(alignment.evaluate(encoder, pairs, step=step, drop_overlap=options.drop_overlap))
    else:
        encoder = encoders.open()
        results = [alignment.evaluate(encoder, pairs, drop_overlap=options.drop_overlap)]
    if options.plot is not None:
        plots.plot_alignment(results, pairs.name, options.plot)
    assert encoder is not None
    result = make_result(
        "alignment",
        alignment.values(pairs, results),
        headline=alignment.headline(pairs, results),
        encoder=encoder,
        data=pairs.files,
        settings={"positives": pairs.what, "seed": options.seed},
        overlap=results[-1].overlap,
    )
    return common.Report(result, alignment.table(pairs, results))
