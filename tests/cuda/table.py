"""The table of what a training step of each case costs a GPU: host synchronisations, kernel launches, float32 products,
exchanges between ranks.

python -m tests.cuda.table        # writes steps.tsv anew, after a change that is meant to change it
"""

import importlib.util
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
from tests.support.programs import PATIENCE, free_port, rank_environment
from tests.support.runs import environment

TABLE = Path(__file__).with_name("steps.tsv")
HALF_QUEUE = "dual_moco, bfloat16 queue"
"""A case whose products read bfloat16 on GPUs in any precision, so that it is not as close to a CPU's as others."""
SHARDED = "dual_moco, sharded"
DEEP = "dual_moco, as deep as BERT"
"""A case with the layers of BERT-base, the queues of dual momentum contrast and the fused kernels, whose launches are
counted. Their number depends neither on the batch nor on the width, so both are small."""
JOBS: dict[int, list[str]] = {
    1: [
        *(f"float32/{case}" for case in (*CASES, *VARIANTS) if case not in (HALF_QUEUE, SHARDED, DEEP)),
        *(f"bf16/{case}" for case in (*CASES, HALF_QUEUE)),
        "fp16/dual_moco",
        *([f"bf16/{DEEP}"] if importlib.util.find_spec("triton") is not None else []),
    ],
    2: [*(f"float32/{case}" for case in (*CASES, "dual_moco, in pieces", SHARDED)), f"fp16/{SHARDED}"],
}
"""The cases that are run by a number of ranks, with their precision."""
COLUMNS = {
    "syncs": "syncs", "launches": "launches", "float32_products": "float32 products", "collectives": "collectives",
    "exchanged": "bytes exchanged",
}  # fmt: skip
Found = dict[str, dict[str, Any]]


def absence() -> str | None:
    """Return why there is neither a GPU nor an emulated one, or None."""
    if not os.path.exists("/dev/nvidiactl") and shutil.which("g++") is None:
        return "there is no GPU, and g++ is not installed, which the emulated one is compiled with"
    return None


def run(lines: list[list[str]], folder: Path, ranks: int = 1) -> list[str]:
    """Run lines of ``tests.cuda.commands`` in one process with a GPU, or in each of several that train together; return
    what each of them printed."""
    file = folder / "lines.json"
    file.write_text(json.dumps([[free_port(), *line] for line in lines]), encoding="utf-8")
    places: list[dict[str, str]] = [{}]
    if ranks > 1:  # each is the first rank of its host, so that all of them share the device
        places = [{**rank_environment(rank, ranks, 0), "LOCAL_RANK": "0"} for rank in range(ranks)]
    line, pipe = [sys.executable, "-m", "tests.cuda.commands", str(file)], subprocess.PIPE
    given = [{**environment(threads=1), **place} for place in places]
    processes = [subprocess.Popen(line, env=each, stdout=pipe, stderr=pipe, text=True) for each in given]
    try:
        ends = [process.communicate(timeout=3 * PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, ends, strict=True):
        assert process.returncode == 0, out + err
    return [out for out, _ in ends]


def job(ranks: int, data: Path, output: Path, cases: list[str] | None = None) -> list[str]:
    """Return a line that runs cases, by default all of a number of ranks; rank 0 writes what it found to ``output``."""
    return ["tests.cuda.job", str(data), str(output), *(JOBS[ranks] if cases is None else cases)]


def totals(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a case, a step."""
    figures = {**found, "syncs": sum(found["syncs"].values())}
    return {column: figures[name] for name, column in COLUMNS.items()}


def read_table() -> tuple[str, dict[tuple[int, str], dict[str, float]]]:
    """Return the version of torch that the table is of, and the figures by number of ranks and PRECISION/CASE."""
    first, header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    columns = header.split("\t")[3:]
    rows = [line.split("\t") for line in lines]
    return first.split()[-1], {
        (int(ranks), f"{precision}/{case}"): dict(zip(columns, map(float, figures), strict=True))
        for case, ranks, precision, *figures in rows
    }


def write_table(jobs: dict[int, Found]) -> None:
    lines = [f"# Written by python -m tests.cuda.table with torch {version('torch')}"]
    lines.append("\t".join(["case", "ranks", "precision", *COLUMNS.values()]))
    for ranks, cases in jobs.items():
        for name, found in cases.items():
            precision, _, case = name.partition("/")
            figures = [f"{value:.10g}" for value in totals(found).values()]
            lines.append("\t".join([case, str(ranks), precision, *figures]))
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, jobs = Path(name), {}
        os.environ["XREP_HOME"] = f"{folder}/home"
        if not os.path.exists("/dev/nvidiactl"):
            os.environ["TRITON_INTERPRET"] = "1"
        data = write_data(folder / "data")
        for ranks in JOBS:
            run([job(ranks, data, folder / "found.json")], folder, ranks)
            jobs[ranks] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
        write_table(jobs)


if __name__ == "__main__":
    main()
