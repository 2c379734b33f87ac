"""``xrep-eval nli``."""

from __future__ import annotations

import argparse
import sys

from xrep.errors import UserError
from xrep_cli.evaluations import common

DESCRIPTION = """\
Natural language inference: how many pairs of premise and hypothesis the classifier of a run puts into their class
(entailment, neutral, contradiction). The run was trained with --criterion nli, alone or as one of several parts.

  xrep-eval nli --path run1/best --data xnli/
  xrep-eval nli --path run1/best --data xnli/ --langs de,fr --premise-lang en --json nli.json
  xrep-eval nli --path run1/best --data multinli_1.0_dev_matched.jsonl --split dev

--data is one data set as it is published: a file of it, a folder, or a folder of folders.
  XNLI              xnli.test.tsv or .jsonl; test-de.tsv and so on, of three columns
  SNLI, MNLI, CNSD  snli_1.0_test.jsonl or .txt, dev_matched.tsv, cnsd_snli_v1.0.test.jsonl
  parallel files    s1.test, s2.test and labels.test

Languages that the classifier was not trained on are measured zero-shot."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="PATH", help="file or folder of the data set")
    add("--langs", default="all", help="languages to measure (de,fr or deu,fra), or all")
    add("--premise-lang", metavar="LANG", help="take every premise from this language (XNLI's are translations)")
    add("--split", choices=("test", "dev"), default="test", help="split to measure on")
    add("--language", default="en", metavar="LANG", help="of files that do not tell theirs")
    add("--part", metavar="NAME", help="of a run with several classifiers, the part whose classifier is measured")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation import nli
    from xrep.evaluation.result import make_result
    from xrep.text.nli_readers import discover_nli_test

    if options.list_sentences:
        problem = "vectors of another system have no classifier"
        raise UserError(problem, cure="leave --list-sentences out and give --path, or measure by xrep-eval sts")
    files = discover_nli_test(options.data, options.split, options.language)
    tests = nli.read_tests(files, options.langs, options.premise_lang)
    encoder = encoders.open()
    classifier = nli.load_classifier(encoder, options.part)
    progress = sys.stderr.isatty()
    results = nli.evaluate(encoder, classifier, tests, drop_overlap=options.drop_overlap, show_progress=progress)
    result = make_result(
        "nli",
        nli.values(results),
        headline=nli.headline(results),
        encoder=encoder,
        data=nli.files_of(files, tests),
        settings={name: getattr(options, name) for name in ("split", "langs", "premise_lang", "part")},
        overlap=nli.overlap_of(results),
    )
    return common.Report(result, nli.table(results))
