"""``xrep-eval``: measure an encoder, or a translator, on published test sets."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from xrep.errors import UserError
from xrep.files import write_aside
from xrep_cli.common import HelpFormatter, command_parser, console_script
from xrep_cli.evaluations import common

EVALUATIONS = {
    "tatoeba": "find translations among up to 1000 sentences, 112 languages",
    "bucc": "mine parallel sentences from two monolingual texts, with a gold list",
    "sts": "semantic textual similarity: STS12-16, STS-B, SICK-R, multilingual STS-B",
    "senteval": "classify sentences by their vectors: MR CR SUBJ MPQA SST TREC MRPC SICK",
    "nli": "natural language inference by the classifier of a run: XNLI, SNLI, MNLI, CNSD",
    "translation": "translate a test set from each of its languages: BLEU and chrF",
    "alignment": "alignment and uniformity, of one encoder or along a run",
    "language-bias": "share of each language among nearest neighbours in a mixed pool",
    "neighbours": "the nearest sentences of a query",
    "scatter": "a picture of parallel sentences or of their tokens",
    "all": "every test that finds its data in a folder: one table, one JSON",
}
"""Name -> summary; the module of that name in ``xrep_cli.evaluations`` is imported when chosen."""


def load(name: str) -> ModuleType:
    """The module of an evaluation, see ``xrep_cli.evaluations``."""
    return importlib.import_module(f"xrep_cli.evaluations.{name.replace('-', '_')}")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Every evaluation has a summary in it, the chosen one its options."""
    parser = command_parser(
        "xrep-eval",
        "Measure a sentence encoder, or a translation model, on published test sets.\n\n"
        "  xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr\n"
        "  xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de,fr --target-lang en\n"
        "  xrep-eval all --path run1/best --data data/ --json results.json\n"
        "  xrep-eval sts --help\n\n"
        "The encoder is a checkpoint, a directory of Hugging Face or sentence-transformers, or the vectors of any\n"
        "other system: --list-sentences writes the sentences of a test; their vectors then lie in a folder, as\n"
        "vectors.npy [N, D] beside that list, sentences.tsv.",
    )
    commands = parser.add_subparsers(dest="evaluation", required=True, metavar="TEST")
    for name, summary in EVALUATIONS.items():
        module = load(name) if name == chosen else None
        description = module.DESCRIPTION if module else None
        command = commands.add_parser(name, help=summary, description=description, formatter_class=HelpFormatter)
        if module:
            module.add_options(command)
    return parser


@console_script
def main(argv: Sequence[str]) -> None:
    options = build_parser(argv[0] if argv and argv[0] in EVALUATIONS else None).parse_args(argv)
    common.check_options(options)
    encoders = common.Encoders(options)
    report = load(options.evaluation).run(options, encoders)
    if encoders.listed is not None:
        encoders.listed.write(options.list_sentences)
        print(f"{len(encoders.listed)} sentences: {options.list_sentences}")
    else:
        _publish(report, options.json)
    if report.failed:
        problem = f"{', '.join(report.failed)} could not be measured"
        raise UserError(problem, cure="; ".join(report.failed.values()))


def _publish(report: common.Report, file: str | None) -> None:
    from xrep.evaluation.result import to_json

    values = to_json(report.result)
    print(values if file == "-" else report.text + "\n", end="")
    if file not in (None, "-"):
        with write_aside(file) as temporary:
            temporary.write_text(values, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
