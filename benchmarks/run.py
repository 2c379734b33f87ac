"""Run every benchmark that compares xrep with others, one after the other, and append their rows to a CSV file.

  python benchmarks/run.py --quick --csv benchmarks/results.csv    # small sizes: about ten minutes on two cores
  python benchmarks/run.py --quick --only encode --only mining
  python benchmarks/run.py --csv benchmarks/results.csv            # the sizes of the scripts: hours
  ATEN_CPU_CAPABILITY=avx2 python benchmarks/run.py --quick        # all that can be are restricted to AVX2
  python benchmarks/run.py --table                                 # write the table of README.md anew, of results.csv

Each script runs in a process of its own, in which the contestants take turns. The demo corpus and a small English
encoder are fetched on first use.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from harness import progress
from results import table

from xrep.files import write_aside
from xrep.text.resources import find_resource
from xrep_cli.command import HelpFormatter

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
BENCHMARKS = {
    "kernels": ("--size small", ""),
    "encode": ("--path {encoder} --one", "--lines 250 --repeats 3"),
    "train": ("--encoder {encoder}", "--pairs 128 --batch-size 16 --repeats 3 --layers 2 --width 128"),
    "generate": ("", "--layers 3 --decoder-layers 2 --hidden-size 256 --words 8000 --batch 8 --repeats 3"),
    "mining": ("--path {encoder}", "--sizes 4000 --lines 500 --repeats 3"),
    "classify": ("--encoder {encoder}", "--lines 80 --batch-size 8 --repeats 3"),
    "objectives": ("--teacher {encoder}", "--steps 4 --batch-size 16 --repeats 3"),
}
"""Arguments of each script, and those of a quick run besides."""


def run(name: str, quick: bool, csv: str | None) -> bool:
    """Run one benchmark; return whether it succeeded."""
    words, small = BENCHMARKS[name]
    words = words.format(encoder=find_resource("minilm").get(progress) if "{encoder}" in words else "")
    line = [
        str(HERE / f"{name}.py"),
        *shlex.split(f"{words} {small if quick else ''}"),
        *(["--csv", csv] if csv else []),
    ]
    progress(f"== python {shlex.join(line)}")
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run([sys.executable, *line], env=environment).returncode == 0


def write_table() -> None:
    """Replace the lines of README.md from the head of the table to its end."""
    lines = README.read_text(encoding="utf-8").splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("| ")]
    start = next(number for number in places if lines[number].startswith("| benchmark | ours |"))
    lines[start : places[-1] + 1] = table()
    with write_aside(README) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="this one alone; can be repeated")
    parser.add_argument("--csv", metavar="FILE", help="append the rows to this file")
    parser.add_argument("--table", action="store_true", help="write the table of README.md anew, and stop")
    options = parser.parse_args()
    if options.table:
        write_table()
        return 0
    failed = [name for name in options.only or BENCHMARKS if not run(name, options.quick, options.csv)]
    progress(f"failed: {', '.join(failed)}" if failed else "all benchmarks ran")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
