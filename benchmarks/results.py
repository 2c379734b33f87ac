"""Rows of measured ratios: how they are computed and kept in a CSV file, and the tables that are made of it."""

from __future__ import annotations

import csv
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

FIGURES = Path(__file__).resolve().with_name("results.csv")
"""The rows of all machines."""
FLAGS = "avx2 avx512f avx512_vnni avx512_bf16 avx_vnni amx_bf16 amx_int8".split()
"""Processor flags that decide which products are fast."""
RESTRICTED = os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"
"""Whether all contestants are to use AVX2 alone, to measure a second kind of processor on the same machine."""
if RESTRICTED:  # each library reads a variable of its own when it is imported
    os.environ.update(MKL_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2", FAISS_SIMD_LEVEL="AVX2")
    os.environ.update(OPENBLAS_CORETYPE="Haswell", CT2_FORCE_CPU_ISA="AVX2")


@dataclass(frozen=True)
class Row:
    """One ratio: the time of what stands beside, over that of ours in the same round. Above 1, ours is faster.

    Attributes:
        text: ``short`` or ``long`` lines, or what was read instead.
        ratio: The median over the rounds; ``low`` and ``high`` are the smallest and the largest of them.
    """

    machine: str
    date: str
    commit: str
    benchmark: str
    text: str
    ours: str
    beside: str
    ratio: float
    low: float | str
    high: float | str
    rounds: int


def compare(
    benchmark: str, text: str, seconds: Mapping[str, Sequence[float]], pairs: Mapping[str, Sequence[str]]
) -> list[Row]:
    """Return a row for each of ours and each of those that ``pairs`` names beside it, if both took part."""
    here, rows = (machine(), date.today().isoformat(), commit()), []
    for ours, beside in [(ours, beside) for ours, names in pairs.items() for beside in names]:
        if ours in seconds and beside in seconds:
            each = [theirs / mine for mine, theirs in zip(seconds[ours], seconds[beside], strict=True)]
            spread = [round(value, 3) for value in (statistics.median(each), min(each), max(each))]
            rows.append(Row(*here, benchmark, text, ours, beside, *spread, len(each)))
    return rows


def report(rows: Sequence[Row], path: str | None) -> None:
    """Print rows, and append them to the CSV file if one is named."""
    for row in rows:
        print(f"{row.benchmark}, {row.text}: {row.ours} beside {row.beside}: {row.ratio:.2f} ({row.low} to {row.high})")
    if path:
        with open(path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [column.name for column in fields(Row)], lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


def machine() -> str:
    """Return the processor with the flags that matter and the number of threads."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    model, flags = (re.search(rf"^{key}\s*: (.*)$", cpu, re.MULTILINE) for key in ("model name", "flags"))
    name, known = model[1] if model else platform.machine(), flags[1].split() if flags else []
    threads = os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
    use = "restricted to AVX2" if RESTRICTED else " ".join(flag for flag in FLAGS if flag in known)
    return f"{name}, {threads} thread{'s' * (str(threads) != '1')}, {use}"


def commit() -> str:
    line = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(line, cwd=FIGURES.parent, capture_output=True, text=True).stdout.strip()


def latest(path: Path = FIGURES) -> list[dict[str, str]]:
    """Return the rows of a file; of rows that differ in nothing but date and figures, the last one."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    names = ("machine", "benchmark", "text", "ours", "beside")
    return [*{tuple(row[name] for name in names): row for row in rows}.values()]


def table(path: Path = FIGURES) -> list[str]:
    """Return the lines of a table in Markdown with the range of each ratio over the machines.

    The last column, for other texts than short and long lines, has the range over all of these.
    """
    found = dict[tuple[str, str, str], dict[str, list[float]]]()
    for row in latest(path):
        texts = found.setdefault((row["benchmark"], row["ours"], row["beside"]), {})
        column = row["text"] if row["text"] in ("short", "long") else "other"
        texts.setdefault(column, []).append(float(row["ratio"]))
    lines = ["| benchmark | ours | beside | short lines | long lines | other input |", f"|{' --- |' * 6}"]
    for names, texts in sorted(found.items()):
        cells = [*names, *(_range(texts.get(column, [])) for column in ("short", "long", "other"))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _range(ratios: Sequence[float]) -> str:
    low, high = (f"{pick(ratios, default=0):.2f}" for pick in (min, max))
    return "" if not ratios else low if low == high else f"{low} to {high}"
