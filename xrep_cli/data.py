"""xrep-data: the known corpora and pretrained encoders, and how to get them."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from xrep.text.corpora import RESOURCES, Resource, find_resource
from xrep_cli.common import HelpFormatter, command_parser, console_script

DESCRIPTION = """\
Known corpora and pretrained encoders: what they are, their licence and layout, where they come from.

examples:
  xrep-data list
  xrep-data get demo                 fetch and check the demo corpus, say where it lies
  xrep-data get demo --print-path    the same, but print its folder alone, for scripts
  xrep-data get minilm               fetch and check a pretrained encoder
  xrep-data get un                   explain where to find it and what to do with it
"""
HEADINGS = {"corpus": "Corpora", "encoder": "Pretrained encoders"}


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-data", DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list the known corpora and pretrained encoders", formatter_class=HelpFormatter
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    get = commands.add_parser(
        "get",
        help="fetch a corpus or a pretrained encoder, or explain how to",
        description="Fetch a corpus or a pretrained encoder into $XREP_HOME. One that xrep cannot fetch is "
        "explained; with --print-path, which needs a folder, that is an error (exit code 2).",
        formatter_class=HelpFormatter,
    )
    get.add_argument("name", metavar="NAME", help="one of: " + ", ".join(r.name for r in RESOURCES))
    get.add_argument("--print-path", action="store_true", help="print nothing but the folder on standard output")
    return parser


def _main(argv: Sequence[str]) -> None:
    arguments = build_parser().parse_args(argv)
    if arguments.command == "get":
        _get(find_resource(arguments.name), arguments.print_path)
    elif arguments.json:
        print(json.dumps([asdict(resource) for resource in RESOURCES], indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(_sections()))


def _get(resource: Resource, print_path: bool) -> None:
    if resource.fetch is None and not print_path:
        print(_describe(resource))
        return
    path = resource.get(functools.partial(print, file=sys.stderr, flush=True))
    if print_path:
        print(path)
    else:
        print(f"{_describe(resource)}\n  lies in    {path}")


def _sections() -> Iterator[str]:
    """The headings, and under each what is known of its kind."""
    for kind, heading in HEADINGS.items():
        yield f"{heading}\n{len(heading) * '='}"
        yield from (_describe(resource) for resource in RESOURCES if resource.kind == kind)


def _describe(resource: Resource) -> str:
    facts = {
        "languages": resource.languages,
        "licence": resource.licence,
        "layout": resource.layout,
        "from": resource.origin,
        "sha256": resource.sha256,
        "use": resource.instructions,
    }
    return "\n".join(
        [f"{resource.name}: {resource.what}", *(f"  {key:<10} {value}" for key, value in facts.items() if value)]
    )


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())
