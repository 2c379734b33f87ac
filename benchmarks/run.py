"""Every benchmark that compares xrep with others, one after the other, and all their ratios in one table.

  python benchmarks/run.py --quick                                  # small sizes, about ten minutes
  python benchmarks/run.py --quick --only encode --only mining
  python benchmarks/run.py --json figures.json --page docs/benchmarks.md    # the sizes of the scripts, hours

Each script runs in a process of its own, in which the contestants take turns (CTranslate2 takes its turns in processes
of its own). A ratio is the time of another program, or of another objective or setting of xrep, over that of ours in
the same round (above 1: ours takes less time), and the table has its median over the rounds. The spread is the distance
between the quartiles of that ratio, as a share of the median; a ratio whose spread is too large is marked as unsteady,
because another run may give another one. Programs that are not installed are named below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import ROUNDS, make_parser, markdown_table, progress, write_json

from xrep.errors import UserError
from xrep.files import check_output, write_aside
from xrep_cli.command import console_script

HERE = Path(__file__).resolve().parent
UNSTEADY = 0.1
"""Spread from which on a ratio is marked."""
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")
"""Processor flags that decide which products are fast."""


@dataclass(frozen=True)
class Benchmark:
    """A script, and which of its contestants are compared.

    Attributes:
        measures: What is measured, for the page.
        pairs: Patterns of the names of our contestants and of those beside which they are placed.
        quick: Arguments of a quick run. ``{encoder}``, ``{corpus}``, ``{text}`` and ``{labelled}`` are replaced.
        full: Arguments of a run with the sizes of the script.
        needs: Packages without which the script cannot run.
    """

    measures: str
    pairs: tuple[tuple[str, str], ...]
    quick: str
    full: str = ""
    needs: tuple[str, ...] = ()


ENCODE = "--path {encoder} --text {text}"
CLASSIFY = "--encoder {encoder} --data {labelled}"
SMALL = "--layers 2 --hidden-size 128 --heads 4 --feedforward-size 512 --vocabulary-size 4000 --length 24"
BENCHMARKS = {
    "kernels": Benchmark(
        "losses, forward and backward, beside plain torch and beside their matrix products alone (floor)",
        (("ours", "*"),),
        "--cases queue-small,inbatch,hard,vocabulary --scale 0.25 --precision fast --no-memory --repeats 9",
    ),
    "encode": Benchmark(
        "`SentenceEncoder.encode` of real sentences through all-MiniLM-L6-v2, beside others with the same weights",
        (
            ("xrep, *", "sentence-transformers"),
            ("xrep, float32", "*32"),
            ("xrep, bfloat16", "*16"),
            ("xrep, int8", "*int8"),
        ),
        f"{ENCODE} --sentences 250 --repeats 5",
        ENCODE,
        ("sentence_transformers",),
    ),
    "encoder": Benchmark(
        "an encoder, forward and backward, beside torch's own with the same weights",
        (("ours", "*"),),
        "--batches 25",
    ),
    "train": Benchmark(
        "training steps beside a plain loop and MultipleNegativesRankingLoss of sentence-transformers",
        (("xrep", "*"),),
        "--data {corpus} --encoder {encoder} --batch-size 32 --layers 2 --width 128 --queue-size 4096 --steps 2 "
        "--repeats 5",
        "--data {corpus} --encoder {encoder}",
        ("sentence_transformers",),
    ),
    "hictl": Benchmark(
        "training steps of HiCTL beside the same forward passes without contrast, and beside plain negatives",
        (("hictl", "*"),),
        f"{SMALL} --batch-size 48 --steps 15 --device cpu",
    ),
    "dap_cost": Benchmark(
        "training steps of dual-alignment pre-training beside translation ranking, alone and with TLM",
        (("DAP", "*"),),
        f"{SMALL} --batch-size 48 --steps 15 --device cpu",
        "--steps 15",
    ),
    "generate": Benchmark(
        "beam search beside transformers and CTranslate2 with the same weights",
        (("xrep*", "*"),),
        "--layers 3 --decoder-layers 2 --hidden-size 256 --words 8000 --batch 8 --tokens 20 --repeats 5",
        needs=("transformers",),
    ),
    "classify": Benchmark(
        "fine-tuning steps and labels of a classifier beside transformers",
        (("xrep", "*"),),
        f"{CLASSIFY} --batch-size 8 --steps 4 --texts 60 --repeats 5",
        CLASSIFY,
        ("transformers", "accelerate"),
    ),
    "mining": Benchmark(
        "exact nearest neighbours in both directions beside faiss",
        (("ours", "*"),),
        "--sizes 4000 --precision fast --repeats 7",
    ),
}


def inputs(words: str, folder: Path) -> dict[str, str]:
    """Return the paths that replace the names in braces; encoder and corpus are fetched on first use.

    Raises:
        UserError: One of them cannot be fetched.
    """
    from xrep.text.resources import find_resource

    found = {"encoder": str(find_resource("minilm").get(progress))} if "{encoder}" in words else {}
    if any(f"{{{name}}}" in words for name in ("corpus", "text", "labelled")):
        corpus = find_resource("demo").get(progress)
        found |= {"corpus": str(corpus), "text": str(corpus / "train.de-en.en"), "labelled": str(folder / "labelled")}
    if "{labelled}" in words:
        (folder / "labelled").mkdir()
        lines = Path(found["text"]).read_text(encoding="utf-8").splitlines()
        for name, some in {"train": lines[:2000], "dev": lines[2000:2100], "test": lines[2100:2200]}.items():
            rows = (f"{'long' if len(line) > 40 else 'short'}\t{line}\n" for line in some)
            (folder / "labelled" / f"{name}-en.tsv").write_text("".join(rows), encoding="utf-8")
    return found


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Run one benchmark, and return its ``rows``, who is ``absent`` with the reason and, if it fails, the ``code``."""
    benchmark = BENCHMARKS[name]
    missing = [package for package in benchmark.needs if find_spec(package) is None]
    if missing:
        return {"rows": [], "absent": {name: f"{missing[0]} is not installed"}}
    with tempfile.TemporaryDirectory() as folder:
        words, times = benchmark.quick if quick else benchmark.full, Path(folder, "rounds.jsonl")
        times.touch()
        try:
            line = words.format(**inputs(words, Path(folder)))
        except UserError as error:
            return {"rows": [], "absent": {name: str(error)}}
        progress(f"== {name}: python benchmarks/{name}.py {words}")
        environment = {**os.environ, ROUNDS: str(times)}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(HERE / f"{name}.py"), *shlex.split(line)]
        code = subprocess.run(command, env=environment, stdout=sys.stderr).returncode
        contests = [json.loads(line) for line in times.read_text(encoding="utf-8").splitlines()]
    rows = [row for contest in contests for row in ratios(name, contest)]
    absent = {other: reason for contest in contests for other, reason in contest.get("absent", {}).items()}
    return {"rows": rows, "absent": absent, **({"code": code} if code else {})}


def ratios(name: str, contest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table for one contest, from the seconds of each round."""
    seconds, rows = contest.get("seconds", {}), {}
    for ours, beside in BENCHMARKS[name].pairs:
        for mine in [each for each in seconds if fnmatchcase(each, ours)]:
            for other in [each for each in seconds if fnmatchcase(each, beside) and not fnmatchcase(each, ours)]:
                rows[mine, other] = ratio(seconds[mine], seconds[other])
    title = ", ".join(filter(None, [name, contest.get("title", "")]))
    return [{"benchmark": title, "ours": mine, "beside": other, **row} for (mine, other), row in rows.items()]


def ratio(mine: list[float], other: list[float]) -> dict[str, Any]:
    """Return the median of the ratios of the rounds, and whether it is steady."""
    each = [theirs / ours for ours, theirs in zip(mine, other, strict=True)]
    median, spread = statistics.median(each), None
    if len(each) > 1:
        first, _, third = statistics.quantiles(each, n=4, method="inclusive")
        spread = (third - first) / median
    return {"ratio": median, "spread": spread, "rounds": len(each), "steady": spread is not None and spread <= UNSTEADY}


def machine() -> dict[str, Any]:
    import torch

    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    model, flags = (re.search(rf"^{key}\s*: (.*)$", cpu, re.MULTILINE) for key in ("model name", "flags"))
    known = set(flags[1].split()) if flags else set()
    return {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in known],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def table(figures: dict[str, Any]) -> list[str]:
    """Return all ratios, and below them who was absent and which benchmarks failed."""
    rows = [["benchmark", "ours", "beside", "its time over ours", "spread", "rounds"]]
    for row in figures["rows"]:
        spread = "-" if row["spread"] is None else f"{row['spread']:.0%}"
        marked = spread if row["steady"] else f"{spread}, unsteady"
        names = [row[key] for key in ("benchmark", "ours", "beside")]
        rows.append([*names, f"{row['ratio']:.2f}", marked, str(row["rounds"])])
    lines = markdown_table(rows)
    notes = [f"- Absent from {name}: {other} ({reason})." for name, other, reason in figures["absent"]]
    notes += [f"- {name} failed with exit code {code}." for name, code in figures["failed"].items()]
    return [*lines, "", *notes] if notes else lines


def described(here: dict[str, Any]) -> str:
    flags = " ".join(here["flags"]) or "no known flags"
    versions = f"torch {here['torch']}, Python {here['python']}"
    return f"{here['processor']} ({flags}), {here['threads']} threads, {versions}"


def page(figures: dict[str, Any]) -> str:
    """Return the page about the figures of a run, which are all that it reads."""
    sizes = "small sizes" if figures["quick"] else "the sizes that the scripts have by default"
    about = (
        f"Times of xrep on one machine, with {sizes}, beside those of other programs with the same work, of the matrix"
        " products in it (`floor`, `products alone`), and of other objectives or settings of xrep (`TR`, `passes`,"
        " `random batches`), which show what ours costs. A ratio is the time of what stands beside over that of ours in"
        " the same round: above 1, ours takes less time. The contestants of a benchmark take turns in one process, but"
        " for CTranslate2, which has processes of its own, and the figures are medians over the rounds. Where the"
        f" middle half of the rounds differs by more than {UNSTEADY:.0%} of the median, the ratio is marked as"
        " unsteady: another run may give another one. The folder `benchmarks/` has the scripts, and its README figures"
        " at larger sizes. With `--page docs/benchmarks.md` the command writes this page anew."
    )
    paragraphs = [
        "# Benchmarks",
        textwrap.fill(about, 120, break_long_words=False, break_on_hyphens=False),
        f"```sh\n{figures['command']}\n```",
        f"Measured on {figures['date']}: {described(figures['machine'])}.",
        "\n".join(table(figures)),
        "\n".join(f"- **{name}**: {BENCHMARKS[name].measures}." for name in figures["benchmarks"]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: about ten minutes on two cores")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), metavar="NAME",
                        help=f"run this benchmark alone; can be repeated: {', '.join(BENCHMARKS)}")  # fmt: skip
    parser.add_argument("--page", metavar="FILE", help="write the page about the figures, such as docs/benchmarks.md")
    return parser


@console_script("benchmarks/run.py")
def main(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)
    for file in filter(None, (options.json, options.page)):
        check_output(file)
    chosen = [name for name in BENCHMARKS if name in (options.only or BENCHMARKS)]
    only = [f"--only {name}" for name in chosen] if options.only else []
    measured = {name: measure(name, options.quick) for name in chosen}
    figures = {
        "command": " ".join(["python benchmarks/run.py", *["--quick"] * options.quick, *only]),
        "date": date.today().isoformat(),
        "quick": options.quick,
        "machine": machine(),
        "benchmarks": chosen,
        "rows": [row for found in measured.values() for row in found["rows"]],
        "absent": [[name, *each] for name, found in measured.items() for each in found["absent"].items()],
        "failed": {name: found["code"] for name, found in measured.items() if "code" in found},
    }
    print("\n".join([*table(figures), "", described(figures["machine"])]))
    write_json(options.json, figures)
    if options.page:
        with write_aside(options.page) as aside:
            aside.write_text(page(figures), encoding="utf-8")
    if figures["failed"]:
        raise UserError(f"failed: {', '.join(figures['failed'])}", cure="see the messages above")


if __name__ == "__main__":
    sys.exit(main())
