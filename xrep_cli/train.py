"""xrep-train: train an encoder, a translator or a classifier."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xrep.config import runs_of, to_configuration
from xrep.errors import UserError
from xrep_cli.command import console_script, naming_options
from xrep_cli.train_options import parse


@console_script("xrep-train")
def main(argv: Sequence[str]) -> None:
    with _one_report_per_host():
        line = parse(argv)
    with naming_options(line.option_names()):
        with _one_report_per_host():
            runs = runs_of(line.layers, line.problems)
            if line.print_config:
                print(to_configuration(runs), end="")
                return
            from xrep.memory import keep_freed_memory
            from xrep.training.distributed import leave, start
            from xrep.training.run import train
            from xrep.training.stages import train_course

            keep_freed_memory()
            world = start(runs[0].configs["distributed"], runs[0].configs["trainer"].device)
        summary = train_course(runs, functools.partial(train, world=world), world.is_main)
        leave(world)
    if not summary.finished:  # a scheduler does not call it completed, and no command after `&&` begins
        raise SystemExit(128 + signal.Signals[str(summary.signal)])


@contextmanager
def _one_report_per_host() -> Iterator[None]:
    """All processes that torchrun starts find the same error in the command; let only the first on each host report
    it."""
    try:
        yield
    except UserError:
        size, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("LOCAL_RANK", "")
        if re.fullmatch("[0-9]{1,9} [0-9]{1,9}", f"{rank} {size}") and 0 < int(rank) < int(size):
            raise SystemExit(2) from None
        raise


if __name__ == "__main__":
    sys.exit(main())
