"""What a run of many ranks costs each of them: planning, messages and losses.

Planning is measured in this process for each number of ranks. The time of a sum and of a meeting is measured with real
processes at the numbers of --measured, and that of a sum is computed for larger numbers from the steps of its ring.
Bytes are computed. The batch has --batch pairs on each rank, with vectors of 768 numbers.

    python benchmarks/ranks.py --ranks 2 8 64 1024 --measured 2 8
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from xrep.data.batch_plan import plan_batches
from xrep.data.order import ExampleOrder
from xrep.training.pulse import Pulse, connect
from xrep.workers import ahead

_ROWS, _REPEAT, _WIDTH = 1_000_000_000, 50, 768


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 1024])
    parser.add_argument("--measured", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that a step takes besides its plan")
    options = parser.parse_args()
    measured = {size: _messages(size) for size in options.measured}
    largest = max(measured)
    step = measured[largest][0] / (2 * (largest - 1))  # a ring
    columns: dict[str, list[str]] = {"": [f"{ranks:,} ranks" for ranks in options.ranks]}
    for corpora in (1, 100):
        plans = [_planning(ranks, options.batch, corpora, options.pause) for ranks in options.ranks]
        columns[f"plan of a step, {corpora} corpora: main thread, ms of CPU"] = [f"{main:.2f}" for main, _ in plans]
        columns[f"plan of a step, {corpora} corpora: all threads, ms of CPU"] = [f"{cpu:.1f}" for _, cpu in plans]
    columns["sum of counts, ms"] = [
        f"{measured[ranks][0]:.2f}" if ranks in measured else f"{2 * (ranks - 1) * step:.1f} (computed)"
        for ranks in options.ranks
    ]
    columns["meeting, ms"] = [f"{measured[ranks][1]:.2f}" if ranks in measured else "-" for ranks in options.ranks]
    megabytes = [ranks * options.batch / 1e6 for ranks in options.ranks]
    columns["columns of in-batch losses: received, MB"] = [f"{8 * each:.3f}" for each in megabytes]
    columns["gathered with every rank, MB (before)"] = [
        f"{8 * each * ranks:,.3f}" for each, ranks in zip(megabytes, options.ranks, strict=True)
    ]
    columns["gradient of gathered rows: reduce-scatter, MB"] = [f"{4 * _WIDTH * each:,.1f}" for each in megabytes]
    columns["summed on every rank, MB (before)"] = [f"{8 * _WIDTH * each:,.1f}" for each in megabytes]
    columns["share of a validation on a rank, at least a pool, test or batch"] = [
        f"1/{ranks}" for ranks in options.ranks
    ]
    for name, cells in columns.items():
        print("| " + " | ".join([name, *cells]) + " |", flush=True)
        if not name:
            print("| --- " * (len(cells) + 1) + "|")


def _planning(ranks: int, batch: int, corpora: int, pause: float) -> tuple[float, float]:
    """Return the milliseconds of CPU that the plan of a step takes of the main thread, and those of the process."""
    order = ExampleOrder([_ROWS // corpora] * corpora, 1.0 if corpora == 1 else 0.3, 1, _lengths)
    plans = ahead(plan_batches(order, batch, 0, ranks // 2, ranks))
    next(plans)
    waited, cpu = list[float](), time.process_time()
    for _ in range(20):
        time.sleep(pause)
        began = time.thread_time()
        next(plans)
        waited.append(time.thread_time() - began)
    return 1e3 * statistics.median(waited), 1e3 * (time.process_time() - cpu) / len(waited)


def _lengths(corpus: int, rows: np.ndarray) -> np.ndarray:
    return rows * 2654435761 % 61 + 4


def _messages(ranks: int) -> tuple[float, float]:
    """Return the milliseconds of a sum and of a meeting, measured with processes."""
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    multiprocessing.spawn(_rank, (ranks, store.port, queue), ranks)
    return queue.get()


def _rank(rank: int, ranks: int, port: int, queue: multiprocessing.SimpleQueue) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", store=connect(timedelta(minutes=5)), rank=rank, world_size=ranks)
    pulse = Pulse("pulse", rank, ranks, 300)
    times = [_median(lambda: dist.all_reduce(torch.ones(8))), _median(pulse.meet)]
    if rank == 0:
        queue.put(tuple(times))
    pulse.stop()
    dist.destroy_process_group()


def _median(call: Callable[[], object]) -> float:
    times = list[float]()
    for _ in range(_REPEAT):
        began = time.monotonic()
        call()
        times.append(time.monotonic() - began)
    return 1e3 * statistics.median(times)


if __name__ == "__main__":
    main()
