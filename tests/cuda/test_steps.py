"""Training steps of every criterion on CUDA: losses and weights are those of a CPU, and costs those of the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cuda.cases import CASES, write_data
from tests.cuda.table import JOBS, absence, read_table, run_job, totals
from tests.programs import PATIENCE
from tests.runs import environment
from xrep.registry import CRITERIA

pytestmark = [pytest.mark.slow, pytest.mark.skipif(absence() is not None, reason=absence() or "")]
REAL = os.path.exists("/dev/nvidiactl")
CLOSE = {"float32": 1e-2 if REAL else 2e-5, "bf16": 0.03, "fp16": 0.2}
"""How far losses and weights of five steps may be from those of the CPU in float32: losses as a share, weights as they
are. In float16 the first steps are skipped, until the loss is scaled by less."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("cuda"))


def test_every_criterion_has_a_case() -> None:
    assert {case.partition(",")[0] for case in CASES} == set(CRITERIA.names())


@pytest.mark.parametrize("ranks, precision", JOBS)
def test_steps(ranks: int, precision: str, data: Path, tmp_path: Path) -> None:
    torch_version, table = read_table()
    problems = []
    for case, found in run_job(ranks, precision, data, tmp_path / "found.json").items():
        for what in ("losses apart", "weights apart"):
            if not found.get(what, 0.0) <= CLOSE[precision]:
                problems.append(f"{case}: {what} by {found[what]:.2g} from those of the CPU")
        known = table[case, str(ranks), precision]
        for column, value in totals(found).items():
            # Which kernels an operation launches depends on the version of torch, and is not counted on a real GPU.
            if value > known[column] and not (column == "launches" and torch_version != version("torch")):
                problems.append(f"{case}: {value:g} {column} a step, and the table has {known[column]:g}")
                problems += [f"    {count:g} x {place}" for place, count in found["syncs"].items() if column == "syncs"]
    cure = "\nIf this is meant: python -m tests.cuda.table"
    assert not problems, "\n".join(problems) + cure


def test_a_step_that_is_not_finite_ends_the_run_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "tests.cuda.not_finite", str(data / "pairs"), str(tmp_path / "found.json")]
    finished = subprocess.run(line, env=environment(threads=1), capture_output=True, text=True, timeout=PATIENCE)
    assert finished.returncode == 0, finished.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["loss"]["end"].startswith("step 3: the loss is nan; it begins in criterion (from finite inputs); ")
    gradient = "the gradient of model.encoders.shared.token_embedding.weight"
    assert found["gradient"]["end"].startswith(f"step 3: the norm of the gradient is nan; it begins in {gradient}; ")
    assert found["loss"]["kept"] and found["gradient"]["kept"] and found["changes"]
