"""xrep-train: train an encoder."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence

from xrep.config import RunConfig, compose_course, course_to_yaml
from xrep.errors import UserError
from xrep_cli.common import VERSION, console_script
from xrep_cli.options import CommandLine, help_text, parse


@console_script
def main(argv: Sequence[str]) -> None:
    line, runs = _read(argv)
    if "help" in line.flags:
        print(help_text(line))
        return
    if "version" in line.flags:
        print(VERSION)
        return
    if "print-config" in line.flags:
        print(course_to_yaml(runs), end="")
        return
    from xrep.training.distributed import leave, start
    from xrep.training.run import train
    from xrep.training.stages import train_course

    try:
        world = start(runs[0].configs["distributed"], runs[0].configs["trainer"].device)
    except UserError:
        _speak_once_a_host()
        raise
    try:
        train_course(runs, functools.partial(train, world=world), world.is_main)
    finally:
        leave(world)


def _read(argv: Sequence[str]) -> tuple[CommandLine, list[RunConfig]]:
    try:
        line = parse(argv)
        return line, [] if {"help", "version"} & line.flags else compose_course(line.layers, line.problems)
    except UserError:
        _speak_once_a_host()
        raise


def _speak_once_a_host() -> None:
    """Processes that torchrun started all find the same fault in what was typed; the first on each host tells it."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
