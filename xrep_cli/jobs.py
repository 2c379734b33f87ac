"""xrep-jobs: how far a command is that several processes share, and another try for what failed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from xrep.errors import shortened
from xrep_cli.common import HelpFormatter, command_parser, command_script, write_summary

DESCRIPTION = """\
Tell how far a command is that does its work in units: xrep-encode, xrep-mine, xrep-search build and others.

  xrep-encode --path run1/best --lang de --input 's3://bucket/de/*.zst' --output s3://bucket/de --engine ray
  xrep-jobs status s3://bucket/de      # from any machine: units that are done, running and failed, and the time left
  xrep-jobs retry s3://bucket/de       # after the cause of failures is gone: try these units again

Such a command keeps what is done in a folder beside its output, OUTPUT.job, until all of it is done."""
STATUS = """\
Print a line for each stage of a command, and one for each unit that failed.

  xrep-jobs status mined.tsv           the command that writes mined.tsv
  xrep-jobs status mined.tsv --log     with all that is known of the failures
  watch xrep-jobs status mined.tsv     again every two seconds

A unit has failed if three tries ended in an error that is not the user's. The other units are done nevertheless. The
rate is that of the units that are running now; the time left is that of the stage, not of those after it."""
RETRY = """\
Let the units be tried again that failed.

  xrep-jobs retry mined.tsv

The processes that share the work try them when they come to them; if all have ended, start the same command again. A
command that one process does, or Ray, tries them again without this, when it is started."""
_SHOWN = 10
"""Most failures that are listed without their logs."""


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-jobs", DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, description in {"status": STATUS, "retry": RETRY}.items():
        summary = description.partition("\n")[0].rstrip(".")
        command = commands.add_parser(
            name, help=summary[0].lower() + summary[1:], description=description, formatter_class=HelpFormatter
        )
        command.add_argument("address", metavar="OUTPUT", help="the output of a command, or its folder OUTPUT.job; a "
            "path, or an address in an object store")  # fmt: skip
        if name == "status":
            command.add_argument("--log", action="store_true", help="print the logs of failures as a whole")
            command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _main(options: argparse.Namespace) -> None:
    from xrep.jobs.notes import FINISHED, notes_of, retry
    from xrep.jobs.outputs import job_address
    from xrep.store.addresses import exists, join

    named = str(options.address)
    address = named if named.rstrip("/").endswith(".job") else job_address(named)
    if options.command == "retry":
        print(f"{retry(address):,} units that failed will be tried again")
        return
    finished = exists(join(address, FINISHED))
    stages = [] if finished else notes_of(address)
    states, failed = [notes.status() for notes in stages], [one for notes in stages for one in notes.failures()]
    if options.json:
        write_summary({"job": address, "finished": finished, "stages": states, "failures": failed}, "-")
        return
    if finished:
        print(f"all is done, and the output is written; {address} may be removed")
        return
    _print_table([_row(**state) for state in states])
    for failure in failed if options.log else failed[:_SHOWN]:
        unit, log = f"{failure['stage']}, unit {failure['unit']}", failure["log"].rstrip()
        print(f"\n{unit}:\n{log}" if options.log else f"{unit}: {shortened(log.rpartition(chr(10))[2])}")
    if len(failed) > _SHOWN and not options.log:
        print(f"and {len(failed) - _SHOWN:,} more, which --log or --json shows")


def _row(
    stage: str,
    count: int | None,
    done: int,
    running: int,
    failed: list[int],
    rate: float | None,
    left: float | None,
    **_: Any,
) -> tuple[str, ...]:
    from xrep.progress import duration

    if count is None:
        return (stage, *("-" * 6))
    counts = (f"{number:,}" for number in (done, running, len(failed), count))
    return (stage, *counts, "-" if rate is None else f"{rate:,.2f}", "-" if left is None else duration(left))


def _print_table(rows: list[Any]) -> None:
    rows = [("stage", "done", "running", "failed", "all", "a second", "left"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        print(
            f"{name:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)),
            sep="  ",
        )


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())
