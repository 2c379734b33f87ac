"""The memory of xrep-mine, which does not grow with the sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import environment

SCRIPT = """\
import re, sys
from pathlib import Path
import numpy as np, torch
from xrep.data import hash_runs
from xrep.inference import mining
from xrep.retrieval import mapped, margins, search, vectors
from xrep_cli.mine import main

hash_runs._RUN = search.MOST_ROWS = 20_000
mining._BLOCK, margins._HELD = 2000, 1 << 15
mapped._BLOCK_BYTES = vectors._SURVEY_BYTES = 1 << 17


def invent(x, y, best_x, best_y, first_x, first_y, advance):
    for best, first in ((best_x, first_x), (best_y, first_y)):
        rows = torch.arange(first, first + len(best.index))[:, None]
        best.index[:] = (rows * 7919 + torch.arange(4) * 977) % (count // 2)
        best.similarity[:] = 0.9 - 0.1 * torch.arange(4) + rows % 1009 * 1e-5


search.search_block = invent
for count in map(int, sys.argv[1:3]):
    options = ["--device", "cpu", "--output", "mined.tsv", *sys.argv[3:]]
    for side in ("source", "target"):
        draw = np.random.default_rng(0)
        blocks = (draw.standard_normal((1000, 4)) for _ in range(count // 1000))
        vectors.write_npy(Path("vectors.npy"), np.dtype("float16"), (4,), blocks)
        options += [f"--{side}-vectors", "vectors.npy", f"--{side}", "lines.txt"]
    with open("lines.txt", "w") as file:
        file.writelines(f"{number % (count * 3 // 4) or ''}\\n" for number in range(count))
    assert main(options) == 0
    print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--one-to-one"], ["--retrieval", "intersection"]])
def test_memory_does_not_grow_with_the_sentences(tmp_path: Path, options: list[str]) -> None:
    """Compare peak memory after 100,000 lines a side and after 300,000, of which three quarters differ. The neighbours
    are invented, because a search would take minutes; the lists of 150,000
    sentences would take 14 MB, and what chooses among them 20 MB."""
    given = {**environment(), "MALLOC_MMAP_THRESHOLD_": "131072"}
    line = [sys.executable, "-c", SCRIPT, "100000", "300000", *options]
    finished = subprocess.run(line, env=given, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    few, many = (int(line) for line in finished.stdout.splitlines()[1::2])
    assert many - few < 4_000, f"{few} KB after 100,000 lines a side, {many} KB after 300,000"
