"""The structure of the code: imports go to lower floors and have no cycles, files are small, and ruff is content."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FLOORS = {
    "xrep.__main__": 9,
    "xrep_cli": 8,
    "xrep.evaluation": 7,
    "xrep.report": 7,
    "xrep.validation": 7,
    "xrep.criteria": 6,
    "xrep.training": 6,
    "xrep.inference": 6,
    "xrep.tasks": 5,
    "xrep.models": 4,
    "xrep.interop": 3,
    "xrep.nn": 3,
    "xrep.data": 3,
    "xrep.config": 3,
    "xrep.text": 2,
    "xrep.jobs": 2,
    "xrep.registry": 2,
    "xrep.kernels": 1,
    "xrep.retrieval": 1,
    "xrep.store": 1,
    "xrep.metrics": 1,
    "xrep.files": 1,
    "xrep.errors": -1,  # this and the next ones are below the first floor: any room may use them
    "xrep.hashing": 0,
    "xrep.interrupts": 0,
    "xrep.memory": 0,
    "xrep.precision": 0,
    "xrep.progress": 0,
    "xrep.workers": 0,
}
# Rooms of the same floor do not import each other, with these exceptions, each in one direction.
NEIGHBOURS = {
    ("xrep.retrieval", "xrep.kernels"),  # the precision of products
    ("xrep.retrieval", "xrep.files"),  # what a search that may stop has found
    ("xrep.retrieval", "xrep.store"),  # vectors on disk
    ("xrep.store", "xrep.files"),  # a manifest replaces the one before at once
    ("xrep.metrics", "xrep.retrieval"),  # retrieval accuracy counts nearest neighbours
    ("xrep.metrics", "xrep.store"),  # vectors of length 1
    ("xrep.jobs", "xrep.text"),  # the file that holds a text, of which a plan notes the state
    ("xrep.nn", "xrep.data"),  # the type of a batch
    ("xrep.interop", "xrep.data"),  # the type of a batch
    ("xrep.interop", "xrep.nn"),  # the encoder that weights are read into and written from
    ("xrep.validation", "xrep.evaluation"),  # validators measure with the functions of the evaluations
    ("xrep.report", "xrep.evaluation"),  # a report measures what it shows
    ("xrep.training", "xrep.criteria"),  # the type of a criterion and of its loss
}
MAXIMUM_LINES = 400


def modules(repository: Path) -> dict[str, Path]:
    """Return ``{dotted name: file}`` of all modules except ``xrep``, which imports names at their first use."""
    found = {}
    for top in ("xrep", "xrep_cli"):
        for path in (repository / top).rglob("*.py"):
            parts = path.relative_to(repository).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.pop("xrep", None)
    return found


@functools.cache
def imports(repository: Path) -> dict[str, set[str]]:
    """Return the modules of xrep that each module imports, anywhere in its text."""
    files = modules(repository)
    return {name: set(_imports(name, files)) for name in files}


def _imports(name: str, files: dict[str, Path]) -> Iterator[str]:
    package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(files[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                if submodule in files or source in files:
                    yield submodule if submodule in files else source


def room_of(module: str) -> str:
    return next((room for room in FLOORS if f"{module}.".startswith(f"{room}.")), "?")


def violations(repository: Path) -> list[str]:
    """Return each import that goes neither downwards nor to a room of NEIGHBOURS, and each module without a room."""
    found = [f"{name} is in no room of FLOORS" for name in imports(repository) if room_of(name) == "?"]
    for name, targets in imports(repository).items():
        for target in targets:
            room, other = room_of(name), room_of(target)
            below = FLOORS.get(other, -1) < FLOORS.get(room, -1)
            if room != other and not below and (room, other) not in NEIGHBOURS:
                found.append(f"{name} ({room}) imports {target} ({other})")
    return sorted(found)


def test_imports_go_downwards(repository: Path) -> None:
    assert violations(repository) == []


def test_no_module_imports_itself_in_a_circle(repository: Path) -> None:
    graph = {name: targets - {name} for name, targets in imports(repository).items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_logits_are_made_in_the_kernels_alone(repository: Path) -> None:
    """Each of these functions would need a whole similarity matrix of a batch, or all logits of a vocabulary."""
    functions = ("cross_entropy(", "softmax(", "logsumexp(", "nll_loss(")
    # The classes of sentences and pairs, and the places of an annotation, are few.
    few = ("xrep.criteria.annotated", "xrep.inference.classifier", "xrep.criteria.nli", "xrep.criteria.tlm")
    files = {name: path for name, path in modules(repository).items() if not name.startswith(("xrep.kernels", *few))}
    texts = {
        name: path.read_text(encoding="utf-8").replace("linear_cross_entropy(", "") for name, path in files.items()
    }
    assert [(name, function) for name, text in texts.items() for function in functions if function in text] == []


def test_files_are_small(repository: Path) -> None:
    files = [*modules(repository).values(), *(repository / "tests").rglob("*.py")]
    sizes = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path: size for path, size in sizes.items() if size > MAXIMUM_LINES} == {}


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=lambda words: words[0])
def test_ruff(repository: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "ruff", *words, "--quiet", "."]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_pyright(repository: Path) -> None:
    """Types agree, and the code works with the oldest Python of setup.py, which pyproject.toml names."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYRIGHT_")}
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"  # else it asks for a newer version
    result = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
