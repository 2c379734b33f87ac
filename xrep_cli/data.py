"""xrep-data: list the known corpora and pretrained encoders, and fetch them."""

from __future__ import annotations

import functools
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

from xrep.text.resources import RESOURCES, Resource, find_resource
from xrep_cli import common
from xrep_cli.command import Command

HEADINGS = {"corpus": "Corpora", "encoder": "Pretrained encoders"}


@dataclass(kw_only=True)
class DataCommands:
    """List the known corpora and pretrained encoders, with their licences, layouts and origins, and fetch them.

      # List all of them
      xrep-data list
      # Fetch and check the demo corpus, and print where it is
      xrep-data get demo
      # Fetch a pretrained encoder, and print only its folder, for use in scripts
      xrep-data get minilm --print-path

    For a corpus that xrep cannot fetch, get prints where to download it and how to use it."""


@dataclass(kw_only=True)
class List(common.JsonOption):
    """List the known corpora and pretrained encoders."""


def list_(options: List) -> None:
    sections = []
    for kind, heading in HEADINGS.items():
        sections.append(f"{heading}\n{len(heading) * '='}")
        sections += [_describe(resource) for resource in RESOURCES if resource.kind == kind]
    common.write_summary([asdict(resource) for resource in RESOURCES], options.json, "\n\n".join(sections))


@dataclass(kw_only=True)
class Get:
    """Fetch a corpus or a pretrained encoder into $XREP_HOME. If xrep cannot fetch it, print how to get it; with
    --print-path, which needs a folder, that is an error (exit code 2)."""

    name: Annotated[str, common.Option(positional=True, metavar="NAME", help="One of: "
                    + ", ".join(resource.name for resource in RESOURCES))]  # fmt: skip
    print_path: bool = False
    """Print only the folder on standard output."""


def get(options: Get) -> None:
    resource = find_resource(options.name)
    if resource.wheel is None and not options.print_path:
        print(_describe(resource))
        return
    path = resource.get(functools.partial(print, file=sys.stderr, flush=True))
    print(path if options.print_path else f"{_describe(resource)}\n  {'folder':<10} {path}")


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


VERBS = {"list": Command("xrep-data", List, list_), "get": Command("xrep-data", Get, get)}
main = Command("xrep-data", DataCommands, below=lambda: VERBS)

if __name__ == "__main__":
    sys.exit(main())
