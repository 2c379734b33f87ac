"""Run every benchmark that compares xrep with others, one after the other, and append their rows to a CSV file.

  python benchmarks/run.py --quick --csv benchmarks/results.csv    # small sizes: about ten minutes on two cores
  python benchmarks/run.py --quick --only encode --only mining
  python benchmarks/run.py --csv benchmarks/results.csv            # the sizes of the scripts: hours
  ATEN_CPU_CAPABILITY=avx2 python benchmarks/run.py --quick        # all that can be are restricted to AVX2
  python benchmarks/run.py --table                                 # write the table of README.md anew, of results.csv

Each script runs in a process of its own. The demo corpus and a small English encoder are fetched on first use.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from harness import progress
from results import table

from xrep.text.resources import find_resource
from xrep_cli.command import HelpFormatter

HERE = Path(__file__).resolve().parent
BENCHMARKS = {
    "losses": ("", ""),
    "encode": ("--path ENCODER", "--lines 250 --repeats 3"),
    "train": ("--encoder ENCODER", "--pairs 128 --batch-size 16 --repeats 3 --layers 2 --width 128"),
    "generate": ("", "--layers 3 --decoder-layers 2 --hidden-size 256 --words 8000 --batch 8 --repeats 3"),
    "mining": ("--path ENCODER", "--sizes 4000 --lines 500 --repeats 3"),
    "classify": ("--encoder ENCODER", "--lines 80 --batch-size 8 --repeats 3"),
    "objectives": ("--teacher ENCODER", "--steps 4 --batch-size 16 --repeats 3"),
}
"""Arguments of each script, and those of a quick run besides."""


def run(name: str, quick: bool, csv: list[str]) -> bool:
    """Run one benchmark; return whether it succeeded."""
    always, small = BENCHMARKS[name]
    encoder = str(find_resource("minilm").get(progress))
    words = [encoder if word == "ENCODER" else word for word in f"{always} {small if quick else ''}".split()]
    line = [sys.executable, str(HERE / f"{name}.py"), *words, *csv]
    progress(f"== {shlex.join(line)}")
    return subprocess.run(line).returncode == 0


def write_table() -> None:
    """Replace the table of README.md."""
    page = HERE / "README.md"
    start, _, rest = page.read_text(encoding="utf-8").partition("| benchmark | ours |")
    page.write_text(start + "\n".join(table()) + "\n\n" + rest.partition("\n\n")[2], encoding="utf-8")


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
    csv = ["--csv", options.csv] if options.csv else []
    failed = [name for name in options.only or BENCHMARKS if not run(name, options.quick, csv)]
    progress(f"failed: {', '.join(failed)}" if failed else "all benchmarks ran")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
