"""``xrep-eval``: measure an encoder on published test sets."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xrep_cli.common import HelpFormatter, console_script


@dataclass(frozen=True)
class Evaluation:
    """A subcommand; only the parser of the one that was chosen is built, and only it imports its library."""

    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    description: str


_TATOEBA = """\
Tatoeba test in LASER's layout: --data holds tatoeba.deu-eng.deu and tatoeba.deu-eng.eng, and so on.

Protocol: for each sentence, the nearest neighbour by cosine among all sentences of the other side; right if it
stands on the same line. Accuracy in percent, from the language into English (xx-en) and back (en-xx).

  xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr
  xrep-eval tatoeba --path run1/best --data tatoeba/ --random-baseline --json out.json --plot out.png

Averages over 14, 28, 36 and 11 languages are those of the literature, given when all their languages were measured."""


def _tatoeba_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--path", required=True, metavar="DIR", help="the encoder: a checkpoint directory")
    add("--data", required=True, metavar="DIR", help="folder of the test files")
    add("--plugin", metavar="MODULE", action="append", help="import a Python module that has the encoder's model")
    add("--langs", default="all", help="language codes (de,fr or deu,fra), or 14, 28, 36 or 11, or all that are there")
    add("--json", metavar="FILE", help="write the results as JSON; - prints JSON alone on stdout")
    add("--plot", metavar="FILE", help="draw the results as a PNG file (needs the extra 'plot')")
    add(
        "--save-embeddings",
        metavar="DIR",
        help="write the vectors as {xxx}.{xxx}.npy and {xxx}.eng.npy: float32 [N, D], L2-normalised, in line order",
    )
    add("--random-baseline", action="store_true", help="measure the same architecture with random weights, too")
    add("--drop-overlap", action="store_true", help="leave out the test pairs that were in the training text")


def _tatoeba(options: argparse.Namespace) -> None:
    from xrep.evaluation import plots, report, tatoeba
    from xrep.files import check_output, write_aside
    from xrep.registry import import_plugin

    for plugin in options.plugin or []:
        import_plugin(plugin)
    if options.json not in (None, "-"):
        check_output(options.json)
    if options.plot is not None:
        plots.check_matplotlib()
        check_output(options.plot)
    if options.save_embeddings is not None:
        check_output(options.save_embeddings, folder=True)
    pools = [tatoeba.read_pool(options.data, code) for code in tatoeba.select(options.langs, options.data)]

    from xrep.sentence_encoder import SentenceEncoder

    results = tatoeba.evaluate(
        SentenceEncoder.load(options.path),
        pools,
        random_encoder=SentenceEncoder.load(options.path, random_weights=True) if options.random_baseline else None,
        drop_overlap=options.drop_overlap,
        keep=functools.partial(report.save_embeddings, options.save_embeddings) if options.save_embeddings else None,
        show_progress=sys.stderr.isatty(),
    )
    values = report.to_json(report.as_dict(results, options.path))
    print(values if options.json == "-" else report.table(results) + "\n", end="")
    if options.json not in (None, "-"):
        with write_aside(options.json) as temporary:
            temporary.write_text(values, encoding="utf-8")
    if options.plot is not None:
        plots.plot_tatoeba(results, options.plot)


EVALUATIONS = {
    "tatoeba": Evaluation("find translations among up to 1000 sentences", _tatoeba_options, _tatoeba, _TATOEBA),
}


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xrep-eval",
        description="Measure a sentence encoder on a published test set.\n\n"
        "  xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr\n"
        "  xrep-eval tatoeba --help",
        formatter_class=HelpFormatter,
    )
    commands = parser.add_subparsers(dest="evaluation", required=True, metavar="TEST")
    for name, evaluation in EVALUATIONS.items():
        command = commands.add_parser(
            name, help=evaluation.summary, description=evaluation.description, formatter_class=HelpFormatter
        )
        if name == chosen:
            evaluation.add_options(command)
    return parser


@console_script
def main(argv: Sequence[str]) -> None:
    options = _parser(argv[0] if argv else None).parse_args(argv)
    EVALUATIONS[options.evaluation].run(options)


if __name__ == "__main__":
    sys.exit(main())
