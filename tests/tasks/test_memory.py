"""Memory for reading batches does not grow with the corpus (peak of separate processes without mapped file pages)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xrep.data.store import MANIFEST_FILE

READ = """
import itertools, multiprocessing, sys
from xrep.data.stream import stream
from xrep.tasks.bitext import BitextTask

def anonymous(process):
    lines = open(f"/proc/{process}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

task = BitextTask(BitextTask.Config(data=sys.argv[1], batch_size=64), seed=1)
peak = 0
for number, _ in enumerate(itertools.islice(stream(task, workers=1), 1100)):  # into the second window
    if number % 10 == 0:
        processes = ["self", *(worker.pid for worker in multiprocessing.active_children())]
        peak = max(peak, sum(map(anonymous, processes)))
print(peak)
"""


def write_large(directory: Path, small: Path, rows: int) -> Path:
    """Write a data directory of ``rows`` pairs of random tokens; the tokenizer and other pairs are from a small one."""
    shutil.copytree(small, directory)
    manifest = json.loads((directory / MANIFEST_FILE).read_text())
    pair = next(pair for pair in manifest["splits"]["train"] if pair["languages"] == ["de", "en"])
    generator = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(generator.integers(3, 20, rows))]).astype("<i8")
    hashes = generator.integers(1, 2**63, (rows, 2)).astype("<u8")
    arrays = {"train.de-en.hashes": hashes}
    for language in pair["languages"]:
        arrays[f"train.de-en.{language}.offsets"] = offsets
        arrays[f"train.de-en.{language}.tokens"] = generator.integers(5, 100, offsets[-1]).astype(manifest["dtype"])
        pair["tokens"][language] = int(offsets[-1])
    pair["rows"] = rows
    for name, array in arrays.items():
        array.tofile(directory / name)
        manifest["files"][name]["bytes"] = array.nbytes
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest))
    return directory


def peak_kilobytes(directory: Path) -> int:
    command = [sys.executable, "-c", READ, str(directory)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(data_directory, tmp_path):
    small = write_large(tmp_path / "small", data_directory, 70_000)
    large = write_large(tmp_path / "large", data_directory, 2_000_000)
    assert sum(file.stat().st_size for file in large.iterdir() if file.is_file()) > 150_000_000
    assert peak_kilobytes(large) - peak_kilobytes(small) < 10_000
