"""xrep-train: train an encoder."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xrep.config import compose
from xrep_cli.common import console_script
from xrep_cli.options import help_text, parse


@console_script
def main(argv: Sequence[str]) -> None:
    line = parse(argv)
    if "help" in line.flags:
        print(help_text(line))
        return
    run = compose(line.layers, line.problems)
    if "print-config" in line.flags:
        print(run.to_yaml(), end="")
        return
    from xrep.training.run import train

    train(run)


if __name__ == "__main__":
    sys.exit(main())
