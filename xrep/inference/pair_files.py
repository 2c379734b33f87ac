"""Files of pairs, as mining and scoring write them, and the jobs that do so."""

from __future__ import annotations

import csv
import itertools
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
from xrep.text.lines import packed
from xrep.text.records import ending_of
from xrep.text.tmx import MEMORIES, write_memory
from xrep.version import __version__

PAIRS_FILE = "pairs"
"""Name of the file that the last stage writes."""
RECORDS = (*MEMORIES, "jsonl", "csv", "parquet")
"""Endings of the files that have records; others have lines with columns, separated by tabs."""
_GROUP = 1 << 14
"""Number of pairs that are written to Parquet at a time."""


def write_pairs(path: Path, output: str | Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write pairs in the format that the name of the output says, and return their number.

    Args:
        path: The file to write, which gets the name of the output later.
        names: Those of the columns: the score, other numbers, and the codes of both languages.
        rows: The score, other numbers, the source and the target of each pair.
    """
    if ending_of(output) == "parquet":
        return _write_parquet(path, names, rows)
    with packed(path, output) as file:
        return _write_text(file, ending_of(output), names, rows)


def _write_text(file: TextIO, ending: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    if ending in MEMORIES:
        units = ((row[0], row[-2], row[-1]) for row in rows)
        return write_memory(file, (names[-2], names[-1]), units, ending)
    table, count = csv.writer(file, lineterminator="\n"), 0
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


def _write_parquet(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    import pyarrow
    from pyarrow import parquet

    types = [pyarrow.float64()] * (len(names) - 2) + [pyarrow.string()] * 2
    schema, count, rows = pyarrow.schema(list(zip(names, types, strict=True))), 0, iter(rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(itertools.islice(rows, _GROUP)):
            columns = map(pyarrow.array, zip(*group, strict=True), types)
            writer.write_batch(pyarrow.record_batch([*columns], schema=schema))
            count += len(group)
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
