"""xrep: list the commands, and run one of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xrep import lazy
from xrep.errors import UserError
from xrep.registry import suggestion
from xrep_cli.command import VERSION, console_script

PROGRAMS = tuple(
    "train recipes eval report sweep preprocess encode mine score search jobs generate predict export data "
    "doctor".split()
)
"""The commands, in the order of the help; ``xrep-train`` is ``xrep train``."""
HELP = """\
usage: xrep COMMAND [options]

Train, evaluate and use cross-lingual sentence encoders. Each command is also a program (xrep-train and so on), whose
options --help lists.

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

        print(script(others[0] if len(others) == 1 else "", PROGRAMS), end="")
    elif first in PROGRAMS:
        if code := lazy.load(f"xrep_cli.{first}").main(others):
            sys.exit(code)
    else:
        raise UserError(f"there is no command {first!r}", cure=suggestion(first, list(PROGRAMS)))


def help_text() -> str:
    return HELP.format(commands="\n".join(f"  {name:<12}{summary(name)}" for name in PROGRAMS))


def summary(name: str) -> str:
    """Return what a command does, from the first line of its module."""
    text = str(lazy.load(f"xrep_cli.{name}").__doc__)
    return text.partition("\n")[0].partition(": ")[2]


if __name__ == "__main__":
    sys.exit(main())
