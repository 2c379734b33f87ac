"""What no machine can hold is refused before it is allocated."""

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.runs import compose_run, make_trainer
from xrep.errors import UserError
from xrep.memory import check_memory, check_move, machine_memory, size_of
from xrep.models.device import to_device
from xrep.nn.queue import Queue
from xrep.training.distributed import alone


def test_what_fits_is_allowed_and_what_does_not_is_one_line() -> None:
    present = machine_memory()
    assert 10**8 < present < 10**15
    check_memory(present, "a queue", cure="lower `queue_size`")
    with pytest.raises(UserError, match=r"^a queue needs .* of memory, and this machine has .*; lower `queue_size`$"):
        check_memory(present + 1, "a queue", cure="lower `queue_size`")


def test_sizes_are_readable() -> None:
    sizes = {
        12: "12 bytes",
        2_500_000: "2.5 MB",
        12_500_000_000: "12.5 GB",
        10**13: "10.0 TB",
        10**40: "over 1,000,000 PB",
    }
    assert {count: size_of(count) for count in sizes} == sizes


def on_gpu(monkeypatch: pytest.MonkeyPatch, free: int, reserved: int) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 10**12))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: reserved)


def test_a_gpu_has_what_is_free_and_what_the_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, 3_000_000, 1_000_000)
    assert machine_memory("cuda:1") == 4_000_000
    check_memory(4_000_000, "a queue", device="cuda:1", cure="lower `queue_size`")
    with pytest.raises(UserError, match=r"^a queue needs 4.0 MB of memory, and cuda:1 has 4.0 MB; lower"):
        check_memory(4_000_001, "a queue", device="cuda:1", cure="lower `queue_size`")


def test_a_module_is_measured_with_its_buffers_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """``to_device`` and the trainer measure what they move."""
    module = torch.nn.ModuleList([torch.nn.Linear(10, 10, bias=False), Queue(5, 4)])
    weights, buffers = 400, 5 * 4 * 4 + 5 * 2 * 8 + 8
    for gradients, needed in ((False, weights + buffers), (True, 2 * weights + buffers)):
        on_gpu(monkeypatch, needed, 0)
        check_move(module, "cuda", gradients=gradients, cure="x")
        on_gpu(monkeypatch, needed - 1, 0)
        with pytest.raises(
            UserError, match=rf"a model with 100 parameters needs {needed} bytes of memory, and cuda has"
        ):
            check_move(module, "cuda", gradients=gradients, cure="x")


def test_models_and_queues_that_a_gpu_cannot_hold_are_not_moved_there(
    monkeypatch: pytest.MonkeyPatch, data_directory: Path, tmp_path: Path
) -> None:
    on_gpu(monkeypatch, 1000, 0)
    with pytest.raises(UserError, match=r"parameters needs .* of memory, and cuda has 1,000 bytes; use another"):
        to_device(torch.nn.Linear(100, 100), "cuda", "float32")
    run = compose_run(data_directory, tmp_path / "run")
    world = replace(alone("cpu"), device=torch.device("cuda", 0))
    with pytest.raises(UserError, match=r"parameters needs .* of memory, and cuda:0 has 1,000 bytes; choose a smaller"):
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
