"""What each stage of xrep-mine reads and writes, by the number of sentences, and the recall of inverted files.

Two sides of random vectors of float16, among which pairs are planted, are mined by one process. Bytes are those that go
through ``xrep.store``: with an object store they would go through the network. In brackets is what ``formulas`` says,
by which docs/guides/mining.md reckons with a billion sentences. Beside them are the checksums of new files and files
without a name, by the calls of the system. Recall is the share of the neighbours of an exact search that are found.

    python benchmarks/mining_bytes.py --sizes 10000 20000 40000 --index-gigabytes 0.012
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from mining import planted

from xrep.inference import mining, nearest
from xrep.jobs.notes import Notes
from xrep.jobs.plan import Job
from xrep.store import addresses
from xrep.store.contents import Bytes


class Counted:
    """The counts of each stage of the jobs that are done inside ``counting``, and the neighbours of the last one."""

    def __init__(self) -> None:
        self.stage, self.began = "", dict[str, float]()
        self.counts = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
        self.neighbours = list[np.ndarray]()

    def add(self, name: str, count: float) -> None:
        self.counts[self.stage][name] += count

    def enter(self, stage: str) -> None:
        """Begin to count for another stage."""
        now = system_bytes()
        for name, value in now.items():
            self.add(name, value - self.began.get(name, value))
        self.stage, self.began = stage, now


def system_bytes() -> dict[str, float]:
    """Return what this process has read and written with calls of the system, and its seconds of processor time."""
    lines = Path("/proc/self/io").read_text().splitlines()
    values = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return {"system_read": values["rchar"], "system_written": values["wchar"], "seconds": time.process_time()}


@contextlib.contextmanager
def counting() -> Iterator[Counted]:
    """Context manager in which files are read and written as always, and counted."""
    counted = Counted()

    def before(owner: Any, name: str, note: Any) -> Any:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            return original(*note(*arguments), **named)

        return mock.patch.object(owner, name, call)

    def fill(file: Bytes, parts: Any) -> Any:
        parts = [(start, content) for start, content in parts]
        counted.add("read", sum(len(content) for _, content in parts))
        return file, parts

    def read(address: Any) -> Any:
        counted.add("read", os.path.getsize(address) if os.path.exists(address) else 0)
        return (address,)

    def publish(file: Any, address: Any) -> Any:
        counted.add("written", os.path.getsize(file) if isinstance(file, Path) else 0)  # the output is there already
        return file, address

    def write(address: Any, content: bytes, *mode: str) -> Any:
        counted.add("written", len(content))
        return address, content, *mode

    def begin(notes: Notes, count: int) -> Any:
        counted.enter(notes.stage)
        counted.add("units", count)
        return notes, count

    def choose(stage: Any, *arguments: Any) -> Any:
        found = (stage._merge.found(label) for label in ("x", "y"))
        bytes_before = counted.counts[counted.stage].copy()
        counted.neighbours = [side.slice(0, len(side)).index.numpy() for side in found]
        counted.counts[counted.stage] = bytes_before
        counted.began = system_bytes()
        return stage, *arguments

    hooks = [
        before(Bytes, "fill", fill), before(addresses, "read", read), before(addresses, "publish", publish),
        before(addresses, "write", write), before(Notes, "begin", begin),
        before(mining.ChoosePairs, "run", choose), before(Job, "clear", lambda job: counted.enter("clear") or (job,)),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        yield counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 20_000, 40_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument(
        "--index", nargs="+", default=["IVF256,SQ8"], metavar="IVFn,...", help="indexes beside the exact search"
    )
    parser.add_argument("--index-gigabytes", type=float, default=2.0)
    options = parser.parse_args()
    print("| index | stage | sentences | units | seconds | MB read | MB written | MB beside |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            exact = list[np.ndarray]()
            for index in ["flat", *options.index]:
                counted = mined(Path(folder), size, options.width, index, options.index_gigabytes)
                show(counted, index, size, options.width)
                exact = exact or counted.neighbours
                tell_recall(index, size, counted.neighbours, exact)


def mined(folder: Path, size: int, width: int, index: str, gigabytes: float) -> Counted:
    paths = planted(folder, size, width)
    x, y = (mining.Text(name=name, vectors=path) for name, path in zip(("source", "target"), paths, strict=True))
    with counting() as counted:
        mining.mine(x, y, folder / "mined.tsv", mining.MiningOptions(index=index, index_gigabytes=gigabytes))
    return counted


def formulas(index: str, N: int, D: int, units: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the bytes that each stage reads and writes for two sides of N vectors of D numbers of 16 bits and 4
    neighbours. An exact search has S strips of the source, which serve both directions up to 16,777,216 rows. An index
    has P parts. Nothing is merged of one strip or part."""
    stored, found = 2 * D * N, 12 * 4 * N
    expected = {
        "check": (2 * stored, 2 * 16 * N),
        "distinct": (2 * 16 * N, 0),
        "choose": (4 * found, 0),
    }
    if index == "flat":
        S = units["search"]
        return {**expected, "search": ((1 + S) * stored, (1 + S) * found), "merge": (S * found, found)}
    P = units["search"] / (2 * math.ceil(N / nearest.MOST_ROWS))
    cells = int(index.removeprefix("IVF").split(",")[0].split("_")[0])
    drawn, centroids = min(N, max(cells, (1 << 28) // (4 * D))), 4 * cells * D
    return {
        **expected,
        "train-index": (2 * 2 * D * drawn, 2 * centroids),
        "search": (2 * (1 + P) * stored + 2 * P * centroids, 2 * P * found),
        "merge": (2 * P * found, 2 * found),
    }


def show(counted: Counted, index: str, size: int, width: int) -> None:
    """Print the counts of each stage; both sides together where each has a stage of its own."""
    stages = defaultdict[str, Counter[str]](Counter)
    for stage, counts in counted.counts.items():
        stages[stage.removesuffix("-source").removesuffix("-target")].update(counts)
    expected = formulas(index, size, width, {stage: counts["units"] for stage, counts in stages.items()})
    for stage, counts in stages.items():
        if counts["units"] and stage in expected:
            of_store = counts["read"], counts["written"]
            read, written = (
                f"{one / 1e6:.1f} ({other / 1e6:.1f})" for one, other in zip(of_store, expected[stage], strict=True)
            )
            beside = (counts["system_read"] + counts["system_written"] - sum(of_store)) / 1e6
            cells = index, stage, f"{size:,}", f"{counts['units']:.0f}", f"{counts['seconds']:.1f}", read, written
            print(f"| {' | '.join(map(str, cells))} | {beside:.1f} |", flush=True)


def tell_recall(index: str, size: int, found: list[np.ndarray], exact: list[np.ndarray]) -> None:
    """Print the share of the true neighbours, and of the targets planted for a source, that were found."""
    hits = [np.mean((mine[:, :, None] == best[:, None, :]).any(1)) for mine, best in zip(found, exact, strict=True)]
    # Every tenth row of a block of 100,000 is planted; targets are in the opposite order.
    rows = np.flatnonzero(np.arange(size) % 100_000 % 10 == 0)
    nearest_found = np.mean(found[0][rows, 0] == size - 1 - rows)
    print(f"{index}, {size:,}: recall {np.mean(hits):.3f}, planted pairs {nearest_found:.3f}", flush=True)


if __name__ == "__main__":
    main()
