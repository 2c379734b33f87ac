"""Rows of measured ratios: how they are computed and kept in a CSV file, and the tables that are made of it."""

import csv
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().with_name("results.csv")
"""The rows of all machines."""
FLAGS = "avx2 avx512f avx512_vnni avx512_bf16 avx_vnni amx_bf16 amx_int8".split()
"""Processor flags that decide which products are fast."""
RESTRICTED = os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"
"""Whether all contestants are to use AVX2 alone, to measure a second kind of processor on the same machine."""
if RESTRICTED:  # each library reads a variable of its own when it is imported
    os.environ.update(MKL_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2", FAISS_SIMD_LEVEL="AVX2")
    os.environ.update(OPENBLAS_CORETYPE="Haswell", CT2_FORCE_CPU_ISA="AVX2")


COLUMNS = "machine date commit benchmark text ours beside ratio low high rounds".split()
"""Of a row. The ratio is the median over the rounds of the time of what stands beside, over that of ours in the same
round: above 1, ours is faster. The smallest and the largest of them are ``low`` and ``high``; ``text`` is ``short`` or
``long`` lines, or says what was read instead."""
Row = dict[str, Any]
Pairs = Mapping[str, Sequence[str]]
"""Names of ours, and of what stands beside each of them."""


def report(
    benchmark: str, text: str, seconds: Mapping[str, Sequence[float]], pairs: Pairs, path: str | None
) -> list[Row]:
    """Print a row for each of the pairs that took part; append the rows to the CSV file, if one is named, and return
    them."""
    here, rows = (machine(), date.today().isoformat(), commit()), list[Row]()
    for ours, beside in [(ours, beside) for ours, names in pairs.items() for beside in names]:
        if ours in seconds and beside in seconds:
            each = [theirs / mine for mine, theirs in zip(seconds[ours], seconds[beside], strict=True)]
            ratio, low, high = (round(value, 3) for value in (statistics.median(each), min(each), max(each)))
            row = *here, benchmark, text, ours, beside, ratio, low, high, len(each)
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            print(f"{benchmark}, {text}: {ours} beside {beside}: {ratio:.2f} ({low} to {high})")
    if path:
        with open(path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerows(rows)
    return rows


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
        names = row["benchmark"], row["ours"], row["beside"]
        texts = found.setdefault(names, {"short": [], "long": [], "other": []})
        texts.get(row["text"], texts["other"]).append(float(row["ratio"]))
    lines = ["| benchmark | ours | beside | short lines | long lines | other input |", f"|{' --- |' * 6}"]
    return lines + [
        f"| {' | '.join([*names, *map(_range, texts.values())])} |" for names, texts in sorted(found.items())
    ]


def _range(ratios: Sequence[float]) -> str:
    low, high = (f"{pick(ratios, default=0):.2f}" for pick in (min, max))
    return "" if not ratios else low if low == high else f"{low} to {high}"
