"""Pairs a second of preprocessing with several numbers of worker processes, and its peak memory.

Each measurement is a process of its own; the numbers of workers take turns, so that other work on the machine slows all
of them down alike. The text is repeated with a number in each copy, so that nothing is a duplicate. The vocabulary is
trained once before, and not measured: SentencePiece trains with two threads whatever the number of workers is.

    python benchmarks/preprocess.py --bitext de-en=deu-eng.tsv --copies 1 4 --workers 1 2 --repeat 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext

_MEASURE = """
import json, resource, sys, time
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.text.find import parse_bitext

options = PreprocessOptions(tokenizers={"shared": sys.argv[2]}, valid_size=0)
began = time.monotonic()
splits, workers = {"train": [parse_bitext(sys.argv[1])]}, int(sys.argv[4])
preprocess(splits, sys.argv[3], options, lambda line: None, False, workers=workers)
seconds = time.monotonic() - began
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([seconds, *(each.ru_utime + each.ru_stime for each in usage), *(each.ru_maxrss for each in usage)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bitext", required=True)
    parser.add_argument("--copies", type=int, nargs="+", default=[1])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    pairs = [(source, target) for _, source, target in read_pairs(parse_bitext(options.bitext))]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _vocabulary(Path(folder), options.bitext)
        print("copies  workers  pairs/s  CPU s, main  CPU s, workers  peak MB, main  peak MB, a worker  speed-up")
        for copies in options.copies:
            text = Path(folder) / f"{copies}.tsv"
            with text.open("w", encoding="utf-8") as file:
                for copy in range(copies):
                    file.writelines(f"{source} {copy}\t{target} {copy}\n" for source, target in pairs)
            measured: dict[int, list[list[float]]] = {workers: [] for workers in options.workers}
            for number in range(options.repeat):
                for workers in options.workers:
                    place = Path(folder) / f"{copies}-{number}-{workers}"
                    measured[workers].append(_measure(f"de-en={text}:1,2", tokenizer, place, workers))
            base = statistics.median(row[0] for row in measured[options.workers[0]])
            for workers, rows in measured.items():
                seconds, main_cpu, worker_cpu, main_peak, worker_peak = map(statistics.median, zip(*rows, strict=True))
                print(
                    f"{copies:6} {workers:8} {len(pairs) * copies / seconds:8,.0f} {main_cpu:12.2f} {worker_cpu:15.2f} "
                    f"{main_peak / 1024:14.0f} {worker_peak / 1024:18.0f} {base / seconds:9.2f}",
                    flush=True,
                )


def _vocabulary(folder: Path, bitext: str) -> Path:
    options = PreprocessOptions(vocabulary_size=8000)
    preprocess({"train": [parse_bitext(bitext)]}, folder / "first", options, lambda line: None, False)
    return folder / "first" / "tokenizer"


def _measure(bitext: str, tokenizer: Path, place: Path, workers: int) -> list[float]:
    command = [sys.executable, "-c", _MEASURE, bitext, str(tokenizer), str(place), str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
