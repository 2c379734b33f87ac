"""Measure whether the tests notice faults: change one place of the product at a time, and run the tests that reach it.

    python scripts/mutants.py draw --count 300 > mutants.jsonl    # which places are changed, and how
    python scripts/mutants.py reach                               # runs the tests once, notes which lines each reaches
    python scripts/mutants.py run mutants.jsonl --jobs 2 --output killed.jsonl

A mutant names a file, the line as it is written and the line as it becomes, so that it stays valid if other lines move.
`reach` and `run` need the package coverage. `run` works in copies of the checkout, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import concurrent.futures
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "kernels": ["xrep/kernels/*.py"],
    "criteria": ["xrep/criteria/*.py"],
    "tasks": ["xrep/tasks/*.py"],
    "data": ["xrep/data/*.py"],
    "training": ["xrep/training/*.py"],
    "models": ["xrep/models/*.py", "xrep/nn/*.py"],
    "text": ["xrep/text/*.py"],
    "metrics": ["xrep/metrics/*.py", "xrep/retrieval/*.py"],
    "inference": ["xrep/inference/*.py", "xrep/evaluation/*.py", "xrep/validation/*.py"],
}
COMPARISONS = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">", "Eq": "!=", "NotEq": "==", "Is": "is not", "IsNot": "is"}
COMPARISONS |= {"In": "not in", "NotIn": "in"}
OPERATORS = {"Add": "-", "Sub": "+", "Mult": "/", "Div": "*", "FloorDiv": "*", "Pow": "*", "BitAnd": "|", "BitOr": "&"}
SYMBOLS = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!=", "Is": "is", "IsNot": "is not"}
SYMBOLS |= {"In": "in", "NotIn": "not in", "BitAnd": "&", "BitOr": "|"}
SYMBOLS |= {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Pow": "**"}


def changes_of(path: Path) -> Iterator[tuple[int, int, int, str]]:
    """Yield the changes that a file allows: line (from 1), first and last column, and the text that replaces them.

    Comparisons, arithmetic, `and` and `or`, numbers, True and False, and calls and assignments that are left out.
    Places that span lines are not changed, nor are annotations, defaults of options, and messages of errors.
    """
    source = path.read_text(encoding="utf-8")
    lines = [line.encode() for line in source.splitlines()]
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        fixed: list[ast.AST | None] = []
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            fixed = [node]
        elif isinstance(node, ast.AnnAssign):
            fixed = [node.annotation, node.value if isinstance(node.value, ast.Constant) else None]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations = [own.annotation for own in ast.walk(node.args) if isinstance(own, ast.arg)]
            fixed = [*node.decorator_list, node.returns, *annotations]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            fixed = [node]
        for own in fixed:
            if own is not None:
                skipped.update(map(id, ast.walk(own)))
    inside = {id(own) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for own in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped or id(node) not in inside or not hasattr(node, "lineno"):
            continue
        if node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]

        def between(
            left: ast.AST, right: ast.AST, old: str, new: str, line: bytes = line
        ) -> tuple[int, int, int, str] | None:
            place = line.find(old.encode(), left.end_col_offset, right.col_offset)
            return None if place < 0 else (left.lineno, place, place + len(old), new)

        found = None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            kind = type(node.ops[0]).__name__
            found = between(node.left, node.comparators[0], SYMBOLS[kind], COMPARISONS[kind])
        elif isinstance(node, ast.BinOp) and type(node.op).__name__ in OPERATORS:
            if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
                kind = type(node.op).__name__
                found = between(node.left, node.right, SYMBOLS[kind], OPERATORS[kind])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            found = between(node.values[0], node.values[1], f" {old} ", f" {new} ")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found = (node.lineno, node.col_offset, node.col_offset + len("not "), "")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            new = str(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
            found = (node.lineno, node.col_offset, node.end_col_offset or 0, new)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) or isinstance(node, ast.AugAssign):
            found = (node.lineno, node.col_offset, node.end_col_offset or 0, "pass")
        if found is not None:
            yield found


def draw(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield mutants, an equal number in each room and at most one in a line."""
    generator = random.Random(seed)
    for room, patterns in ROOMS.items():
        files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
        places: dict[tuple[Path, int], list[tuple[int, int, int, str]]] = {}
        for path in files:
            for change in changes_of(path):
                places.setdefault((path, change[0]), []).append(change)
        for path, number in generator.sample(sorted(places), count // len(ROOMS)):
            _, begin, end, new = generator.choice(sorted(places[path, number]))
            old = path.read_text(encoding="utf-8").splitlines()[number - 1]
            changed = (old.encode()[:begin] + new.encode() + old.encode()[end:]).decode()
            same = path.read_text(encoding="utf-8").splitlines()[: number - 1].count(old)
            yield {"room": room, "file": str(path.relative_to(ROOT)), "old": old, "new": changed, "occurrence": same}


def line_of(mutant: dict, root: Path) -> int | None:
    """Return the number of the line that a mutant changes (from 1), or None if it is no longer there."""
    lines = (root / mutant["file"]).read_text(encoding="utf-8").splitlines() if (root / mutant["file"]).exists() else []
    found = [number for number, line in enumerate(lines, start=1) if line == mutant["old"]]
    return found[mutant["occurrence"]] if len(found) > mutant["occurrence"] else None


def reach(database: Path, options: list[str]) -> None:
    """Run the tests once, and note which of them reaches each line, and how long each takes."""
    environment = os.environ | {"COVERAGE_FILE": str(database), "COVERAGE_CORE": "ctrace"}
    command = ["-m", "pytest", "--cov=xrep", "--cov=xrep_cli", "--cov-context=test", "--cov-report="]
    durations = ["--durations=0", "--durations-min=0", "-vv"]
    with open(database.with_suffix(".log"), "w", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, *command, *durations, *options], cwd=ROOT, env=environment, stdout=log, check=False
        )


def seconds_of_tests(log: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3 and parts[0].endswith("s") and parts[1] in ("setup", "call", "teardown"):
            try:
                seconds[parts[2]] = seconds.get(parts[2], 0.0) + float(parts[0][:-1])
            except ValueError:
                continue
    return seconds


def run_one(mutant: dict, tests: list[str], copy: Path, limit: float) -> dict:
    """Change the copy, run the tests until one fails, in a process forked from this one, and put the file back."""
    path = copy / mutant["file"]
    number = line_of(mutant, copy)
    if number is None:
        return mutant | {"result": "gone"}
    if not tests:
        return mutant | {"result": "not reached"}
    before = path.read_text(encoding="utf-8")
    lines = before.splitlines(keepends=True)
    lines[number - 1] = mutant["new"] + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        printed = Path(folder) / "printed"
        process = multiprocessing.get_context("fork").Process(target=_test, args=(copy, tests, Path(folder), printed))
        process.start()
        process.join(limit)
        ended = process.exitcode is not None
        try:
            os.killpg(process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.join()
        path.write_text(before, encoding="utf-8")
        said = printed.read_text(encoding="utf-8", errors="replace").splitlines() if printed.exists() else []
    if not ended:
        return mutant | {"result": "killed", "by": f"no end after {limit:.0f} s", "tests": len(tests)}
    failed = [line for line in said if line.startswith(("FAILED", "ERROR"))]
    if process.exitcode in (4, 5) and not failed:  # a test that is named is no longer there
        return mutant | {"result": "broken", "by": "; ".join(said[-3:])[:300], "tests": len(tests)}
    result, by = "killed" if process.exitcode else "survived", failed[0][:200] if failed else ""
    return mutant | {"result": result, "by": by, "tests": len(tests)}


def _test(copy: Path, tests: list[str], folder: Path, printed: Path) -> None:
    """Run the tests of the copy in this process, and end it with the exit code of pytest."""
    os.setsid()
    code = 3
    try:
        with open(printed, "wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.chdir(copy)
        os.environ.update(PYTHONPATH=str(copy), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(folder))
        tempfile.tempdir = None
        sys.dont_write_bytecode = True
        sys.path[:] = [
            str(copy),
            *(place for place in sys.path if place and Path(place) not in (ROOT, ROOT / "scripts")),
        ]
        import pytest

        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        quiet = "-n 0 -x -q -p no:cacheprovider --no-header --tb=line".split()
        code = int(pytest.main([*quiet, f"--basetemp={folder / 'base'}", *tests]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def choose(tests: dict[str, float], room: str, budget: float) -> list[str]:
    """Return tests whose seconds add up to the budget: those of the room first, then the others, the quickest first."""
    folder = f"tests/{room}/"
    chosen, total = [], 0.0
    for name in sorted(tests, key=lambda name: (not name.startswith(folder), tests[name], name)):
        if total + tests[name] <= budget or not chosen:
            chosen.append(name)
            total += tests[name]
    return chosen


def run(file: Path, database: Path, output: Path, jobs: int, budget: float) -> None:
    import hypothesis  # noqa: F401  the tests' processes are forked from this one
    import torch  # noqa: F401
    from coverage import CoverageData

    data = CoverageData(str(database))
    data.read()
    seconds = seconds_of_tests(database.with_suffix(".log"))
    mutants = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    done = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] if output.exists() else []
    key = ("file", "old", "new", "occurrence")
    finished = {tuple(own[name] for name in key) for own in done}
    left = [own for own in mutants if tuple(own[name] for name in key) not in finished]
    contexts: dict[str, dict[int, list[str]]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, open(output, "a", encoding="utf-8") as results:
        copies = []
        for number in range(jobs):
            copies.append(Path(folder) / str(number) / "xrep")
            ignored = shutil.ignore_patterns(
                ".git", ".venv", "runs", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"
            )
            shutil.copytree(ROOT, copies[-1], ignore=ignored)
            compileall.compile_dir(copies[-1], quiet=2)

        def work(number: int) -> None:
            while left:
                mutant = left.pop(0)
                name = mutant["file"]
                if name not in contexts:
                    contexts[name] = data.contexts_by_lineno(str(ROOT / name))
                line = line_of(mutant, ROOT)
                reached = {test.partition("|")[0] for test in contexts[name].get(line or 0, []) if test}
                tests = choose({test: seconds.get(test, 1.0) for test in reached}, mutant["room"], budget)
                found = run_one(mutant, tests, copies[number], limit=4 * budget + 120)
                results.write(json.dumps(found, ensure_ascii=False) + "\n")
                results.flush()

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, range(jobs)))
    print(table([json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]))


def table(results: list[dict]) -> str:
    """Return the numbers of mutants by room and result as a table."""
    kinds = ["killed", "survived", "not reached", "gone", "broken"]
    rows = [["room", *kinds]]
    for room in [*ROOMS, "sum"]:
        own = [found["result"] for found in results if room in (found["room"], "sum")]
        rows.append([room, *(str(own.count(kind)) for kind in kinds)])
    return "\n".join("".join(cell.ljust(13) for cell in row).rstrip() for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("draw")
    part.add_argument("--count", type=int, default=300)
    part.add_argument("--seed", type=int, default=0)
    part = commands.add_parser("reach")
    part.add_argument("--database", type=Path, default=ROOT / "runs" / "mutants.coverage")
    part.add_argument("options", nargs="*", help="further options of pytest")
    part = commands.add_parser("run")
    part.add_argument("file", type=Path)
    part.add_argument("--database", type=Path, default=ROOT / "runs" / "mutants.coverage")
    part.add_argument("--output", type=Path, required=True)
    part.add_argument("--jobs", type=int, default=1)
    part.add_argument("--budget", type=float, default=60, help="seconds of tests for each mutant")
    options = parser.parse_args()
    if options.command == "draw":
        for mutant in draw(options.count, options.seed):
            print(json.dumps(mutant, ensure_ascii=False))
    elif options.command == "reach":
        options.database.parent.mkdir(parents=True, exist_ok=True)
        reach(options.database, options.options)
    else:
        run(options.file, options.database, options.output, options.jobs, options.budget)


if __name__ == "__main__":
    main()
