"""``xrep-eval senteval``."""

from __future__ import annotations

import argparse
import sys

from xrep.errors import UserError
from xrep_cli.evaluations import common

DESCRIPTION = """\
SentEval: a logistic regression on the vectors, which stay as they are. Accuracy in percent.

  xrep-eval senteval --path run1/best --data senteval/ --cache vectors/
  xrep-eval senteval --path run1/best --data senteval/ --sets MR,SST2 --classifier sklearn --seeds 1,2,3
  xrep-eval senteval --path run1/best --data xeval/de/ --lang de

--data holds any of these sets as they are published, in any folders (needs the extra 'senteval'):
  MR CR SUBJ MPQA  rt-polarity.pos, custrev.pos, subj.objective, mpqa.pos and so on: nested 10-fold cross-validation
  TREC MRPC        TREC.train or train_5500.label, msr_paraphrase_train.txt: 10-fold on train, then the test part
  SST2 SST5        sentiment-train (for SST5 in a folder named fine) or stsa.fine.train: chosen on dev
  SICK-E SICK-R    SICK_train.txt: chosen on trial; SICK-R is the supervised Pearson (times 100), not that of 'sts'

A folder of translations (XEVAL) has the same files, in UTF-8. Papers print the figures of --classifier senteval, which
stops early and, on vectors of length 1, stays below the exact minimum that --classifier sklearn finds."""


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="folder of the sets")
    add("--sets", default="all", metavar="NAMES", help="sets to measure (MR,CR), or all that are there")
    add("--lang", default="en", metavar="CODE", help="language of the sentences")
    add(
        "--classifier",
        choices=("senteval", "sklearn"),
        default="senteval",
        help="SentEval's own (Adam, early stopping), or scikit-learn's LogisticRegression",
    )
    add("--seeds", default="1111", metavar="N,N", help="seeds of folds and classifier; several give mean and spread")
    add("--folds", type=int, default=10, metavar="K", help="folds of every cross-validation")


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation.result import make_result
    from xrep.evaluation.senteval import evaluate
    from xrep.text.languages import canonical

    settings = evaluate.Settings(options.classifier, _numbers(options.seeds), options.folds)
    settings.check()
    lang = canonical(options.lang)
    sets = evaluate.select(options.sets, options.data, lang)
    encoder = encoders.open()
    if options.list_sentences:
        for data in sets:
            evaluate.encode(encoder, data, lang)
        return common.Report({}, "")
    progress = sys.stderr.isatty()
    results = evaluate.evaluate(
        encoder, sets, settings, lang, drop_overlap=options.drop_overlap, show_progress=progress
    )
    result = make_result(
        "senteval",
        evaluate.values(results),
        headline=evaluate.headline(results),
        encoder=encoder,
        data=sorted({file for data in sets for file in data.files}),
        settings={**settings.as_dict(), "language": lang},
        overlap=evaluate.overlap_of(results),
    )
    return common.Report(result, evaluate.table(results))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--seeds {text!r} are no whole numbers", cure="give numbers such as 1,2,3") from None
