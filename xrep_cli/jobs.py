"""xrep-jobs: how far a command is that several processes share, and another try for what failed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from xrep.errors import shortened
from xrep_cli.common import HelpFormatter, command_parser, command_script, write_summary

if TYPE_CHECKING:
    from xrep.jobs.status import Failure, Status

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
    from xrep.jobs.outputs import job_address
    from xrep.jobs.status import failures, is_finished, retry, statuses

    named = str(options.address)
    address = named if named.rstrip("/").endswith(".job") else job_address(named)
    if options.command == "retry":
        print(f"{retry(address):,} units that failed will be tried again")
        return
    states, failed = statuses(address), failures(address)
    if options.json:
        stages = [asdict(state) | {"rate": state.rate, "left": state.left} for state in states]
        summary = {"job": address, "finished": is_finished(address), "stages": stages}
        write_summary({**summary, "failures": [asdict(failure) for failure in failed]}, "-")
        return
    if is_finished(address):
        print(f"all is done, and the output is written; {address} may be removed")
        return
    _print_table([_row(state) for state in states])
    for failure in failed if options.log else failed[:_SHOWN]:
        print(
            f"\n{_named(failure)}:\n{failure.log.rstrip()}" if options.log else f"{_named(failure)}: {_last(failure)}"
        )
    if len(failed) > _SHOWN and not options.log:
        print(f"and {len(failed) - _SHOWN:,} more, which --log or --json shows")


def _named(failure: Failure) -> str:
    return f"{failure.stage}, unit {failure.unit}"


def _last(failure: Failure) -> str:
    """Return the last line of a log."""
    return shortened(failure.log.rstrip().rpartition("\n")[2])


def _row(state: Status) -> tuple[str, ...]:
    from xrep.progress import duration

    if state.count is None:
        return (state.stage, *("-" * 6))
    left = "-" if state.left is None else duration(state.left)
    rate = "-" if state.rate is None else f"{state.rate:,.2f}"
    counts = (state.done, state.running, len(state.failed), state.count)
    return (state.stage, *(f"{count:,}" for count in counts), rate, left)


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
