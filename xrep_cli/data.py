"""xrep-data: list the known corpora and pretrained encoders, and fetch them."""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import asdict

from xrep.text.corpora import RESOURCES, Resource, find_resource
from xrep_cli.common import command_parser, command_script, write_summary

DESCRIPTION = """\
List the known corpora and pretrained encoders, with their licences, layouts and origins, and fetch them.

examples:
  xrep-data list
  xrep-data get demo                 fetch and check the demo corpus, and print where it is
  xrep-data get demo --print-path    the same, but print only its folder, for use in scripts
  xrep-data get minilm               fetch and check a pretrained encoder
  xrep-data get un                   print where to download it and how to use it
"""
HEADINGS = {"corpus": "Corpora", "encoder": "Pretrained encoders"}


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-data", DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the known corpora and pretrained encoders")
    listing.add_argument("--json", action="store_true", help="print JSON")
    get = commands.add_parser(
        "get",
        help="fetch a corpus or a pretrained encoder, or explain how to get it",
        description="Fetch a corpus or a pretrained encoder into $XREP_HOME. If xrep cannot fetch it, print how to get "
        "it; with --print-path, which needs a folder, that is an error (exit code 2).",
    )
    get.add_argument("name", metavar="NAME", help="one of: " + ", ".join(resource.name for resource in RESOURCES))
    get.add_argument("--print-path", action="store_true", help="print only the folder on standard output")
    return parser


def _main(arguments: argparse.Namespace) -> None:
    if arguments.command == "get":
        _get(find_resource(arguments.name), arguments.print_path)
    elif arguments.json:
        write_summary([asdict(resource) for resource in RESOURCES], "-")
    else:
        sections = []
        for kind, heading in HEADINGS.items():
            sections.append(f"{heading}\n{len(heading) * '='}")
            sections += [_describe(resource) for resource in RESOURCES if resource.kind == kind]
        print("\n\n".join(sections))


def _get(resource: Resource, print_path: bool) -> None:
    if resource.wheel is None and not print_path:
        print(_describe(resource))
        return
    path = resource.get(functools.partial(print, file=sys.stderr, flush=True))
    print(path if print_path else f"{_describe(resource)}\n  {'folder':<10} {path}")


def _describe(resource: Resource) -> str:
    facts = {
        "languages": resource.languages,
        "licence": resource.licence,
        "layout": resource.layout,
        "from": resource.origin,
        "sha256": resource.wheel and resource.wheel.sha256,
        "use": resource.instructions,
    }
    lines = [f"  {key:<10} {value}" for key, value in facts.items() if value]
    return "\n".join([f"{resource.name}: {resource.what}", *lines])


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())
