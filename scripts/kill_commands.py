"""Kill a command that writes files at random moments, start it again, and compare what it writes in the end.

  python scripts/kill_commands.py preprocess --kills 20    # prints "20 of 20 identical"

Each command is a real process in a folder of its own, which is killed (SIGKILL) while it starts, reads or writes. After
that, each of its outputs must be missing, as it was before, or complete. The same command then ends undisturbed, and
its outputs must have the same bytes as those of a command that was never killed. Hidden files that a killed process has
left do not count.

``scripts/kill_test.py`` does the same for xrep-train.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from xrep.files import digests_of, sha256_of
from xrep_cli.common import HelpFormatter, console_script

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the small models that are killed are those of tests/
PATIENCE = 300.0
"""Seconds after which a process counts as hanging."""


@dataclass
class Report:
    """What came of a kill test: the moment of each kill, and the problems, which are none if all is well."""

    kills: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def kill_test(
    command: Sequence[str], outputs: Sequence[str], kills: int, *, inputs: Path, resumes: bool = False, seed: int = 1
) -> Report:
    """Kill a command ``kills`` times, each time in a fresh copy of ``inputs``, and compare what it writes in the end.

    Args:
        command: Name of the command without ``xrep-``, and its arguments; paths are relative to ``inputs``.
        outputs: Files and folders that it writes, relative to ``inputs``.
        inputs: Folder with everything that it reads.
        resumes: Whether a killed command leaves outputs that are not complete, which the next one continues.
        seed: Seed of the moments.
    """
    report, chance = Report(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="xrep-kill-") as place:
        whole = Path(place) / "whole"
        shutil.copytree(inputs, whole)
        began = time.monotonic()
        run = _start(command, whole)
        if code := run.wait(PATIENCE):
            report.problems.append(f"the undisturbed command ends with exit code {code}: {_log(whole)}")
            return report
        seconds, expected = time.monotonic() - began, _digests(whole, outputs)
        report.problems += [f"{name} is not written" for name in outputs if name not in expected]
        while len(report.kills) < kills and not report.problems:
            folder = Path(place) / "killed"
            shutil.copytree(inputs, folder)
            if moment := _kill(command, folder, chance, seconds):
                report.kills.append(moment)
                problems = _problems(command, outputs, folder, inputs, expected, resumes)
                report.problems += [f"killed {moment}: {problem}" for problem in problems]
            shutil.rmtree(folder)
            shutil.rmtree(_home(folder), ignore_errors=True)
    return report


def _kill(command: Sequence[str], folder: Path, chance: random.Random, seconds: float) -> str:
    """Start the command, kill it at a random moment and say when that was; empty if it had ended before."""
    before = set(folder.iterdir())
    run = _start(command, folder)
    began = time.monotonic()
    if chance.random() < 0.7:  # most of the time while it writes
        while set(folder.iterdir()) == before and run.poll() is None:
            if time.monotonic() - began > PATIENCE:
                run.kill()
                raise subprocess.TimeoutExpired(list(command), PATIENCE)
            time.sleep(0.0005)
        time.sleep(chance.uniform(0.0, max(0.0, seconds - (time.monotonic() - began))))
    else:
        time.sleep(chance.uniform(0.0, seconds))
    ended = run.poll() is not None
    run.kill()
    run.wait(PATIENCE)
    writing = " while writing" if set(folder.iterdir()) != before else ""
    return "" if ended else f"after {time.monotonic() - began:.3f} seconds{writing}"


def _problems(
    command: Sequence[str],
    outputs: Sequence[str],
    folder: Path,
    inputs: Path,
    expected: dict[str, object],
    resumes: bool,
) -> list[str]:
    """Check what a killed command left in ``folder``, start it again and check what it has written."""
    left, before = _digests(folder, outputs), _digests(inputs, outputs)
    half = [name for name in left if left[name] not in (expected[name], before.get(name))]
    if half and not resumes:
        return [f"{name} is half-written" for name in half]
    if left != expected and (code := _start(command, folder).wait(PATIENCE)):
        return [f"the next command ends with exit code {code}: {_log(folder)}"]
    written = _digests(folder, outputs)
    return [f"{name} differs" for name in expected if written.get(name) != expected[name]]


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    settings = {"OMP_NUM_THREADS": "1", "XREP_HOME": str(_home(folder))}
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    line = [sys.executable, "-m", f"xrep_cli.{command[0]}", *command[1:]]
    with open(folder.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(
            line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
        )


def _home(folder: Path) -> Path:
    return folder.with_suffix(".home")


def _log(folder: Path) -> str:
    return folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip()


def _digests(folder: Path, outputs: Sequence[str]) -> dict[str, object]:
    """Return the digests of those outputs that exist."""
    there = [name for name in outputs if (folder / name).exists()]
    return {name: digests_of(folder / name) if (folder / name).is_dir() else sha256_of(folder / name) for name in there}


# -- the commands -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A command to be killed, and what it writes."""

    command: list[str]
    outputs: list[str]
    resumes: bool = False


def _preprocess(folder: Path) -> Job:
    """Write parallel text of some thousand pairs, of which a vocabulary is trained."""
    words = random.Random(0)
    names = [["".join(words.choices("aeioulmnrst", k=words.randint(2, 9))) for _ in range(400)] for _ in range(2)]
    with open(folder / "x.tsv", "w", encoding="utf-8") as file:
        for _ in range(4000):
            chosen = [words.randrange(400) for _ in range(words.randint(3, 12))]
            file.write("\t".join(" ".join(side[word] for word in chosen) for side in names) + "\n")
    options = "--bitext de-en=x.tsv --vocab-size 200 --valid-size 20 --destdir data-bin"
    return Job(["preprocess", *options.split()], ["data-bin"])


def _encode(folder: Path) -> Job:
    """Write an encoder and a text of ten chunks."""
    from tests.support.encoders import write_encoder

    write_encoder(folder / "encoder")
    (folder / "lines.txt").write_text("".join(f"ein Haus {row}\n" for row in range(40_000)), encoding="utf-8")
    options = "--device cpu --path encoder --input lines.txt --output vectors.npy"
    return Job(["encode", *options.split()], ["vectors.npy"])


def _mine(folder: Path) -> Job:
    """Write vectors of two texts, half of which are translations."""
    draw = np.random.default_rng(0)
    x, y = (draw.standard_normal((6000, 64)).astype(np.float32) for _ in range(2))
    y[:3000] = x[:3000] + 0.3 * y[:3000]
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    options = "--device cpu --source-vectors x.npy --target-vectors y.npy --output mined.tsv --json summary.json"
    return Job(["mine", *options.split()], ["mined.tsv"])


def _generate(folder: Path) -> Job:
    """Write a translator and some hundred lines."""
    from tests.support.corpus import sentence_pairs
    from tests.support.translators import write_translator

    write_translator(folder / "translator")
    lines = "".join(f"{source}\n" for source, _ in sentence_pairs(300))
    (folder / "lines.txt").write_text(lines, encoding="utf-8")
    options = "--device cpu --path translator --input lines.txt --output hypotheses.txt --max-length-b 20"
    return Job(["generate", *options.split()], ["hypotheses.txt"])


def _search_build(folder: Path) -> Job:
    """Write an encoder and a text of five chunks."""
    from tests.support.encoders import write_encoder

    write_encoder(folder / "encoder")
    (folder / "lines.txt").write_text("".join(f"ein Haus {row}\n" for row in range(20_000)), encoding="utf-8")
    options = "--device cpu --path encoder --input lines.txt --output index --index ivf --quantize int8"
    return Job(["search", "build", *options.split()], ["index"])


def _search_add(folder: Path) -> Job:
    """Write an index and a text of five chunks."""
    from xrep.inference.search_index import SearchIndex

    _search_build(folder)
    SearchIndex.build(folder / "encoder", folder / "lines.txt", folder / "index", index="ivf", device="cpu")
    options = "--device cpu --input lines.txt"
    return Job(["search", "add", "index", *options.split()], ["index"])


JOBS: dict[str, Callable[[Path], Job]] = {
    "preprocess": _preprocess,
    "encode": _encode,
    "mine": _mine,
    "generate": _generate,
    "search-build": _search_build,
    "search-add": _search_add,
}
"""Functions that write the inputs of a command into an empty folder and return the command."""


def run_job(name: str, kills: int, seed: int = 1) -> Report:
    """Run the kill test of one of ``JOBS``."""
    with tempfile.TemporaryDirectory(prefix="xrep-kill-") as inputs:
        job = JOBS[name](Path(inputs))
        return kill_test(job.command, job.outputs, kills, inputs=Path(inputs), resumes=job.resumes, seed=seed)


def _main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("command", nargs="?", choices=["all", *JOBS], default="all", help="the command to kill")
    parser.add_argument("--kills", type=int, default=20, help="number of times that each is killed")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the moments")
    options = parser.parse_args(argv)
    failed = False
    for name in JOBS if options.command == "all" else [options.command]:
        report = run_job(name, options.kills, options.seed)
        for line in report.problems or [f"killed {kill}" for kill in report.kills]:
            print(f"xrep-{name}: {line}", flush=True)
        identical = max(0, len(report.kills) - bool(report.problems))  # the first kill with problems is the last one
        print(f"xrep-{name}: {identical} of {options.kills} identical", flush=True)
        failed = failed or bool(report.problems)
    if failed:
        sys.exit(1)


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())
