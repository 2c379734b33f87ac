"""xrep-jobs: show the progress of a command that several processes share, and try again what failed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from xrep.errors import abbreviated
from xrep.tables import table
from xrep_cli import common
from xrep_cli.command import Command

_SHOWN = 10
"""Most failures that are listed without their logs."""
JobOutput = Annotated[str, common.Option(positional=True, metavar="OUTPUT")]


@dataclass(kw_only=True)
class JobCommands:
    """Show the progress of a command that works in units (xrep-encode, xrep-mine, xrep-search build and others).

      # From any machine: the units that are done, running and failed, and the time that is left
      xrep-jobs status s3://bucket/de
      # What is known of the failures
      xrep-jobs status s3://bucket/de --log
      # After the cause of failures is gone: try these units again
      xrep-jobs retry s3://bucket/de

    Such a command keeps what is done in a folder beside its output, OUTPUT.job, until all of it is done."""


@dataclass(kw_only=True)
class Status(common.JsonOption):
    """Print a line for each stage of a command, and one for each unit that failed.

      xrep-jobs status mined.tsv           the command that writes mined.tsv
      xrep-jobs status mined.tsv --log     with all that is known of the failures
      watch xrep-jobs status mined.tsv     again every two seconds

    A unit has failed if three tries ended in an error that is not the user's. The other units are done nevertheless.
    The rate is that of the units that are running now; the time left is that of the stage, not of those after it."""

    output: JobOutput
    """The output of a command, or its folder OUTPUT.job; a path, or an address in an object store."""
    log: bool = False
    """Print the logs of failures as a whole."""


def status(options: Status) -> None:
    from xrep.jobs.notes import FINISHED, notes_of
    from xrep.store.addresses import exists, join

    address = _address(options.output)
    finished = exists(join(address, FINISHED))
    stages = [] if finished else notes_of(address)
    states, failed = [notes.status() for notes in stages], [one for notes in stages for one in notes.failures()]
    common.write_summary({"job": address, "finished": finished, "stages": states, "failures": failed}, options.json)
    if options.json == "-":
        return
    if finished:
        print(f"all is done, and the output is written; {address} may be removed")
        return
    print(table(["stage", "done", "running", "failed", "all", "a second", "left"], [*map(_row, states)]))
    for failure in failed if options.log else failed[:_SHOWN]:
        unit, log = f"{failure['stage']}, unit {failure['unit']}", failure["log"].rstrip()
        print(f"\n{unit}:\n{log}" if options.log else f"{unit}: {abbreviated(log.rpartition(chr(10))[2])}")
    if len(failed) > _SHOWN and not options.log:
        print(f"and {len(failed) - _SHOWN:,} more, which --log or --json shows")


def _address(named: str) -> str:
    from xrep.jobs.outputs import job_address

    return named if named.rstrip("/").endswith(".job") else job_address(named)


def _row(state: dict[str, Any]) -> tuple[str, ...]:
    from xrep.progress import duration

    if state["count"] is None:
        return (state["stage"], *("-" * 6))
    counts = [f"{number:,}" for number in (state["done"], state["running"], len(state["failed"]), state["count"])]
    rate, left = state["rate"], state["left"]
    return (state["stage"], *counts, "-" if rate is None else f"{rate:,.2f}", "-" if left is None else duration(left))


@dataclass(kw_only=True)
class Retry:
    """Try again the units that failed.

      xrep-jobs retry mined.tsv

    The processes that share the work try them when they come to them; if all have ended, start the same command again.
    A command that is done by one process or by Ray needs no retry: it tries them again whenever it is started."""

    output: JobOutput
    """The output of a command, or its folder OUTPUT.job."""


def retry_failed(options: Retry) -> None:
    from xrep.jobs.notes import retry

    print(f"{retry(_address(options.output)):,} units that failed will be tried again")


VERBS = {"status": Command("xrep-jobs", Status, status), "retry": Command("xrep-jobs", Retry, retry_failed)}
main = Command("xrep-jobs", JobCommands, below=lambda: VERBS)

if __name__ == "__main__":
    sys.exit(main())
