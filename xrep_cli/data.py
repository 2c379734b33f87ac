"""xrep-data: the known data sets, and how to get them."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from xrep.text.corpora import CORPORA, Corpus, find_corpus
from xrep_cli.common import HelpFormatter, console_script

DESCRIPTION = """\
Known data sets: what they are, their licence and layout, where they come from.

examples:
  xrep-data list
  xrep-data get demo                 fetch and check the demo corpus, say where it lies
  xrep-data get demo --print-path    the same, but print its folder alone, for scripts
  xrep-data get un                   explain where to find it and what to do with it
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("xrep-data", description=DESCRIPTION, formatter_class=HelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the known data sets", formatter_class=HelpFormatter)
    listing.add_argument("--json", action="store_true", help="print JSON")
    get = commands.add_parser(
        "get",
        help="fetch a data set, or explain how to",
        description="Fetch a data set into $XREP_HOME. One that xrep cannot fetch is explained; with --print-path, "
        "which needs a folder, that is an error (exit code 2).",
        formatter_class=HelpFormatter,
    )
    get.add_argument("name", metavar="NAME", help="name of the data set: " + ", ".join(c.name for c in CORPORA))
    get.add_argument("--print-path", action="store_true", help="print nothing but the folder on standard output")
    return parser


def _main(argv: Sequence[str]) -> None:
    arguments = build_parser().parse_args(argv)
    if arguments.command == "get":
        _get(find_corpus(arguments.name), arguments.print_path)
    elif arguments.json:
        print(json.dumps([asdict(corpus) for corpus in CORPORA], indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(map(_describe, CORPORA)))


def _get(corpus: Corpus, print_path: bool) -> None:
    if corpus.fetch is None and not print_path:
        print(_describe(corpus))
        return
    path = corpus.get(functools.partial(print, file=sys.stderr, flush=True))
    if print_path:
        print(path)
    else:
        print(f"{_describe(corpus)}\n  lies in    {path}")


def _describe(corpus: Corpus) -> str:
    facts = {
        "languages": corpus.languages,
        "licence": corpus.licence,
        "layout": corpus.layout,
        "from": corpus.origin,
        "sha256": corpus.sha256,
        "use": corpus.instructions,
    }
    return "\n".join(
        [f"{corpus.name}: {corpus.what}", *(f"  {key:<10} {value}" for key, value in facts.items() if value)]
    )


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())
