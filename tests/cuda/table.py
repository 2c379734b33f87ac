"""The table of what a training step of each case costs a GPU: host synchronisations, kernel launches, float32 products.

python -m tests.cuda.table        # writes steps.tsv anew, after a change that is meant to change it
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.cuda.cases import CASES, VARIANTS, write_data
from tests.programs import PATIENCE, free_port, rank_environment
from tests.runs import environment

TABLE = Path(__file__).with_name("steps.tsv")
HALF_QUEUE = "dual_moco, bfloat16 queue"
"""A case whose products read bfloat16 on GPUs in any precision, so that it is not as close to a CPU's as others."""
SHARDED = "dual_moco, sharded"
JOBS: dict[tuple[int, str], list[str]] = {
    (1, "float32"): [case for case in (*CASES, *VARIANTS) if case not in (HALF_QUEUE, SHARDED)],
    (1, "bf16"): [*CASES, HALF_QUEUE],
    (1, "fp16"): ["dual_moco"],
    (2, "float32"): [*CASES, SHARDED],
}
"""The cases that are run by a number of ranks in a precision."""
COLUMNS = {"syncs": "syncs", "launches": "launches", "float32_products": "float32 products"}
Found = dict[str, dict[str, Any]]


def absence() -> str | None:
    """Return why there is neither a GPU nor an emulated one, or None."""
    if not os.path.exists("/dev/nvidiactl") and shutil.which("g++") is None:
        return "there is no GPU, and g++ is not installed, which the emulated one is compiled with"
    return None


def run_job(ranks: int, precision: str, data: Path, output: Path) -> Found:
    """Run the cases of a job and return what its rank 0 found."""
    line = [sys.executable, "-m", "tests.cuda.job", str(data), str(output), precision, *JOBS[ranks, precision]]
    port = free_port()
    places = [rank_environment(rank, ranks, port) if ranks > 1 else {} for rank in range(ranks)]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(line, env={**environment(threads=1), **place}, stderr=pipe, stdout=pipe, text=True)
        for place in places
    ]
    try:
        ends = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, ends, strict=True):
        assert process.returncode == 0, out + err
    return json.loads(output.read_text(encoding="utf-8"))


def totals(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a case, a step."""
    figures = {**found, "syncs": sum(found["syncs"].values())}
    return {column: figures[name] for name, column in COLUMNS.items()}


def read_table() -> tuple[str, dict[tuple[str, str, str], dict[str, float]]]:
    """Return the version of torch that the table is of, and the figures by case, ranks and precision."""
    first, header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    columns = header.split("\t")[3:]
    rows = [line.split("\t") for line in lines]
    return first.split()[-1], {
        (case, ranks, precision): dict(zip(columns, map(float, figures), strict=True))
        for case, ranks, precision, *figures in rows
    }


def write_table(jobs: dict[tuple[int, str], Found]) -> None:
    lines = [f"# Written by python -m tests.cuda.table with torch {version('torch')}"]
    lines.append("\t".join(["case", "ranks", "precision", *COLUMNS.values()]))
    for (ranks, precision), cases in jobs.items():
        for case, found in cases.items():
            lines.append("\t".join([case, str(ranks), precision, *(f"{value:g}" for value in totals(found).values())]))
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XREP_HOME"] = f"{folder}/home"
        data = write_data(Path(folder) / "data")
        write_table({job: run_job(*job, data, Path(folder) / "found.json") for job in JOBS})


if __name__ == "__main__":
    main()
