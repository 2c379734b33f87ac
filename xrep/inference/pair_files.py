"""Files of pairs, as mining and scoring write them, and the jobs that do so."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from xrep.inference.settings import SearchOptions
from xrep.jobs.engines import Engine, run_job
from xrep.jobs.outputs import job_address
from xrep.jobs.plan import Job, Stage
from xrep.store import addresses
from xrep.text.records import ending_of
from xrep.text.tmx import MEMORIES, write_memory
from xrep.version import __version__

PAIRS_FILE = "pairs"
"""Name of the file that the last stage writes."""
RECORDS = (*MEMORIES, "jsonl", "csv")
"""Endings of the files that have records; others have lines with columns, separated by tabs."""


def write_pairs(file: TextIO, output: str | Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write pairs in the format that the name of the output says, and return their number.

    Args:
        names: Those of the columns: the score, other numbers, and the codes of both languages.
        rows: The score, other numbers, the source and the target of each pair.
    """
    ending, count = ending_of(output), 0
    if ending in MEMORIES:
        units = ((row[0], row[-2], row[-1]) for row in rows)
        return write_memory(file, (names[-2], names[-1]), units, ending)
    table = csv.writer(file, lineterminator="\n")
    if ending == "csv":
        table.writerow(names)
    for *numbers, source, target in rows:
        shown = [f"{number:.6f}" for number in numbers]
        if ending == "jsonl":
            values = (*(round(number, 6) for number in numbers), source, target)
            file.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n")
        elif ending == "csv":
            table.writerow([*shown, source, target])
        else:
            file.write("\t".join([*shown, *(str(text).replace("\t", " ") for text in (source, target))]) + "\n")
        count += 1
    return count


def run_pairs_job(
    command: str,
    output: str | Path,
    options: SearchOptions,
    facts: dict[str, Any],
    stages: Sequence[Stage],
    engine: Engine,
    show_progress: bool,
    further: Callable[[], dict[str, Any]] = dict,
) -> dict[str, Any] | None:
    """Do a job whose last stage writes the pairs, and return what is known of the result; as ``run_job``.

    Args:
        facts: What the result depends on beside the options.
        further: Function that returns what other stages know of the result.
    """
    began, settings = time.monotonic(), asdict(options)
    facts = {name: value for name, value in settings.items() if name != "device"} | facts

    def finish() -> dict[str, Any]:
        (last,) = stages[-1].results
        addresses.publish(last.files[PAIRS_FILE], output)
        made = {"path": str(output), "settings": settings, "version": __version__}
        return {**made, **last.facts, **further(), "seconds": time.monotonic() - began}

    job = Job(job_address(output), command, facts, stages)
    return run_job(job, engine, finish, str(output), show_progress=show_progress)
