"""xrep: list the commands, and run one of them."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Sequence

from xrep import lazy
from xrep.errors import UserError
from xrep.registry import suggestion
from xrep_cli.command import VERSION, console_script

OWN = tuple("train eval report sweep preprocess encode mine search jobs generate export data".split())
"""The commands of this package, in the order of the help; ``xrep-train`` is ``xrep train``."""
HELP = """\
usage: xrep COMMAND [options]

Train, evaluate and use cross-lingual sentence encoders. Each command is also a program, xrep-train and so on, and says
by --help what it takes.

{commands}

  xrep --version                  prints the version
  eval "$(xrep completion bash)"  completes commands and options by the tab key (bash, zsh or fish)
"""


@console_script("xrep")
def main(argv: Sequence[str]) -> None:
    first, *others = argv or ["--help"]
    if first in ("-h", "--help", "help"):
        print(help_text(), end="")
    elif first == "--version":
        print(VERSION)
    elif first == "completion":
        from xrep_cli.completion import script

        print(script(others[0] if len(others) == 1 else "", commands()), end="")
    elif first in OWN or first in commands():
        if code := lazy.load(f"xrep_cli.{first}" if first in OWN else commands()[first]).main(others):
            sys.exit(code)
    else:
        raise UserError(f"there is no command {first!r}", cure=suggestion(first, list(commands())))


@functools.cache
def commands() -> dict[str, str]:
    """Return the module of each command. A package adds one by a console script ``xrep-NAME``, the ``main`` of a module
    (a ``xrep_cli.command.Command``)."""
    scripts = importlib.metadata.entry_points(group="console_scripts")
    others = {entry.name.removeprefix("xrep-"): entry.module for entry in scripts if entry.name.startswith("xrep-")}
    return {name: f"xrep_cli.{name}" for name in OWN} | {name: others[name] for name in sorted({*others} - {*OWN})}


def help_text() -> str:
    return HELP.format(commands="\n".join(f"  {name:<12}{summary(module)}" for name, module in commands().items()))


def summary(module: str) -> str:
    """Return what a command does, from the first line of its module."""
    text = str(lazy.load(module).__doc__)
    return text.partition("\n")[0].partition(": ")[2]


if __name__ == "__main__":
    sys.exit(main())
