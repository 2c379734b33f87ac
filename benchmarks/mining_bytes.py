"""What each stage of xrep-mine reads and writes, by the number of sentences, and the recall of inverted files.

Two sides of random vectors of float16, among which pairs are planted, are mined by one process. Bytes are those that go
through ``xrep.store``: with an object store they would go through the network. What is beside them, in files without a
name, is the difference to the calls of the system. Recall is that of the neighbours of an exact search, and of the
nearest neighbour alone where a pair is planted.

    python benchmarks/mining_bytes.py --sizes 20000 40000 80000 --index flat IVF256,SQ8
"""

from __future__ import annotations

import argparse
import contextlib
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

from xrep.inference import mining
from xrep.jobs.notes import Notes
from xrep.jobs.plan import Job
from xrep.store import addresses
from xrep.store.contents import Bytes


class Counted:
    """The counts of each stage of the jobs that are done inside ``counting``, and the neighbours of the last one."""

    def __init__(self) -> None:
        self.stage, self.began = "", {"seconds": 0.0}
        self.counts = defaultdict[str, Counter[str]](Counter)
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
    """Return what this process has read and written so far with calls of the system, and the time."""
    lines = Path("/proc/self/io").read_text().splitlines()
    values = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return {"system_read": values["rchar"], "system_written": values["wchar"], "seconds": time.monotonic()}


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
        counted.add("requests", len(parts))
        return file, parts

    def read(address: Any) -> Any:
        counted.add("read", os.path.getsize(address) if os.path.exists(address) else 0)
        counted.add("requests", 1)
        return (address,)

    def put(file: Path, address: Any) -> Any:
        counted.add("written", file.stat().st_size)
        counted.add("requests", 1)
        return file, address

    def write(address: Any, content: bytes) -> Any:
        counted.add("written", len(content))
        counted.add("requests", 1)
        return address, content

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
        before(Bytes, "fill", fill), before(addresses, "read", read), before(addresses, "put", put),
        before(addresses, "create", write), before(addresses, "write", write), before(Notes, "begin", begin),
        before(mining.Choose, "run", choose), before(Job, "clear", lambda job: counted.enter("clear") or (job,)),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        yield counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 40_000, 80_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--index", nargs="+", default=["flat", "IVF256,SQ8"])
    options = parser.parse_args()
    print("| index | stage | sentences | units | seconds | MB read | MB written | requests | MB beside |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            exact = None
            for index in options.index:
                counted = mined(Path(folder), size, options.width, index)
                show(counted, index, size)
                exact = exact or counted.neighbours
                tell_recall(index, size, counted.neighbours, exact)


def mined(folder: Path, size: int, width: int, index: str) -> Counted:
    paths = planted(folder, size, width)
    x, y = (mining.Text(name=name, vectors=path) for name, path in zip(("source", "target"), paths, strict=True))
    with counting() as counted:
        mining.mine(x, y, folder / "mined.tsv", mining.MiningOptions(index=index))
    return counted


def show(counted: Counted, index: str, size: int) -> None:
    """Print the counts of each stage; both sides together where each has a stage of its own."""
    stages = defaultdict[str, Counter[str]](Counter)
    for stage, counts in counted.counts.items():
        stages[stage.removesuffix("-source").removesuffix("-target")].update(counts)
    for stage, counts in stages.items():
        if counts["units"]:
            read, written = counts["read"] / 1e6, counts["written"] / 1e6
            beside = (counts["system_read"] + counts["system_written"]) / 1e6 - read - written
            print(
                f"| {index} | {stage} | {size:,} | {counts['units']} | {counts['seconds']:.1f} | {read:.1f} | "
                f"{written:.1f} | {counts['requests']:,} | {beside:.1f} |",
                flush=True,
            )


def tell_recall(index: str, size: int, found: list[np.ndarray], exact: list[np.ndarray]) -> None:
    """Print the share of the true neighbours, and of the targets planted for a source, that were found."""
    hits = [np.mean((mine[:, :, None] == best[:, None, :]).any(1)) for mine, best in zip(found, exact, strict=True)]
    # Every tenth row of a block of 100,000 is planted; targets are in the opposite order.
    rows = np.flatnonzero(np.arange(size) % 100_000 % 10 == 0)
    nearest_found = np.mean(found[0][rows, 0] == size - 1 - rows)
    print(f"{index}, {size:,}: recall {np.mean(hits):.3f}, planted pairs {nearest_found:.3f}", flush=True)


if __name__ == "__main__":
    main()
