"""What no machine can hold is refused before it is allocated."""

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.runs import compose_run, make_trainer
from xrep.errors import UserError
from xrep.memory import check_memory, machine_memory
from xrep.models.device import to_device
from xrep.training.distributed import alone
from xrep.training.step import Pair


def test_what_fits_is_allowed_and_what_does_not_is_one_line() -> None:
    present = machine_memory()
    assert 10**8 < present < 10**15
    check_memory(present, "a queue", cure="lower `queue_size`")
    with pytest.raises(UserError, match=r"^a queue needs .* of memory, and this machine has .*; lower `queue_size`$"):
        check_memory(present + 1, "a queue", cure="lower `queue_size`")


@pytest.mark.parametrize(("controllers", "name"), [("", "memory.max"), ("memory", "memory.limit_in_bytes")])
def test_a_job_of_a_cluster_may_have_a_part_of_the_memory(controllers: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text(f"9:name=systemd:/\n5:devices:/\n0:{controllers}:/slurm/job_7/step_0\n")
    folder = tmp_path / "root" / controllers / "slurm" / "job_7"
    (folder / "step_0").mkdir(parents=True)
    (folder / "step_0" / name).write_text("max\n")
    assert machine_memory(tmp_path / "groups", tmp_path / "root") == machine_memory(tmp_path / "none")
    for limited in (folder, tmp_path / "root" / controllers):
        (limited / name).write_text("123456789\n")
        assert machine_memory(tmp_path / "groups", tmp_path / "root") == 123456789
        (limited / name).unlink()


def test_a_model_that_a_gpu_cannot_hold(monkeypatch: pytest.MonkeyPatch, data_directory: Path, tmp_path: Path) -> None:
    def refuse(*arguments: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    for module in (torch.nn.Linear, Pair):
        monkeypatch.setattr(module, "to", lambda self, to: refuse() if str(to).startswith("cuda") else self)
    with pytest.raises(UserError, match=r"10,100 parameters does not fit into the free memory of cuda; use another"):
        to_device(torch.nn.Linear(100, 100), "cuda", "float32")
    run = compose_run(data_directory, tmp_path / "run")
    world = replace(alone("cpu"), device=torch.device("cuda", 0))
    with pytest.raises(UserError, match=r"does not fit into the free memory of cuda:0; choose a smaller"):
        make_trainer(run, tmp_path / "run", world=world)


@pytest.mark.slow
def test_freed_memory_is_used_again() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("this C library is not GNU's")
    script = (
        "import resource, sys, numpy\n"
        "from xrep.memory import keep_freed_memory\n"
        "if sys.argv[1] == 'keep': keep_freed_memory()\n"
        "for _ in range(4):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    arrays = [numpy.full(2**24, 1.0, dtype=numpy.float32) for _ in range(3)]\n"  # 64 MB each
        "    del arrays\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = []
    for how in ("keep", "return"):
        done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, check=True)
        faults.append(int(done.stdout))
    assert faults[0] < 10 < 90 < faults[1]  # 96 pages of 2 MB, or 49,152 of 4 kB
