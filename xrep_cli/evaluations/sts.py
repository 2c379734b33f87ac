"""``xrep-eval sts``."""

from __future__ import annotations

import argparse
import sys

from xrep_cli.evaluations import common

DESCRIPTION = """\
Semantic textual similarity, zero-shot: Spearman and Pearson correlation of the cosine (and dot product, negative
Euclidean and Manhattan distance) of two vectors with people's scores.

  xrep-eval sts --path run1/best --data sts/
  xrep-eval sts --path run1/best --data sts/stsb_multi_mt/ --langs de,fr --split dev --json sts.json

--data holds any of these as they are published, or is one of them:
  STS12-en-test/ to STS16-en-test/   STS.input.{subset}.txt and STS.gs.{subset}.txt
  STSBenchmark/                      sts-{train,dev,test}.csv
  SICK/                              SICK_train.txt, SICK_trial.txt (dev), SICK_test_annotated.txt
  stsb_multi_mt/                     stsb-{xx}-{train,dev,test}.csv

Three averages over the subsets of a year are in use, and differ: all, mean and wmean stand side by side."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="folder of the data sets")
    add("--langs", default="all", help="languages of the data sets to measure (de,fr or deu,fra), or all")
    add("--split", choices=("test", "dev", "train"), default="test", help="STS12 to STS16 have test only")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import sts
    from xrep.evaluation.result import make_result
    from xrep.evaluation.sts_sets import find_sets

    tests = sts.select(find_sets(options.data, options.split), options.langs)
    encoder = encoders.open()
    results = sts.evaluate(encoder, tests, drop_overlap=options.drop_overlap, show_progress=sys.stderr.isatty())
    result = make_result(
        "sts",
        sts.values(results),
        headline=sts.headline(results),
        encoder=encoder,
        data=[file for test in tests for file in test.files],
        settings={"split": options.split, "languages": options.langs},
        overlap=sts.overlap_of(results),
    )
    return common.Report(result, sts.table(results))
