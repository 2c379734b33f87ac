"""The structure of the code: imports go downwards and in no circle, names have one meaning, and files are small."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from xrep.registry import REGISTRIES
from xrep_cli.xrep import PROGRAMS

# From the ground up. A room may import those of its own floor, but no two rooms import each other, however indirectly.
FLOORS = (
    "errors files hashing interrupts lazy memory number_types progress registry tables version workers",
    "kernels metrics retrieval store",
    "config data jobs tasks text",
    "interop models nn",
    "criteria evaluation inference report training validation",
    "xrep_cli understanding __main__ facade",
)
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
LOADERS = ("xrep.lazy", "xrep.registry")
"""The modules that import others by name. The registry names what it loads for others, which are not its imports."""
OF_COMMANDS = ("main", "run", "Options")
"""What each module of a command has."""
MAXIMUM_LINES = 400


def modules(repository: Path) -> dict[str, Path]:
    """Return ``{dotted name: file}`` of all modules."""
    found = {}
    for top in ("xrep", "xrep_cli"):
        for path in (repository / top).rglob("*.py"):
            parts = path.relative_to(repository).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(repository: Path) -> dict[str, set[str]]:
    """Return the modules of xrep that each module imports, anywhere in its text, or names in a string."""
    files = modules(repository)
    return {name: {*_imports(name, files)} | {*_named_in_strings(name, files)} for name in files}


def _imports(name: str, files: dict[str, Path]) -> Iterator[str]:
    package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parsed(files[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                if submodule in files or source in files:
                    yield submodule if submodule in files else source


def _named_in_strings(name: str, files: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that strings name as a whole: ``xrep.module``, or ``xrep.module:Class``."""
    if name != "xrep.registry":
        strings = (node.value for node in ast.walk(parsed(files[name])) if isinstance(node, ast.Constant))
        named = (string.partition(":")[0] for string in strings if isinstance(string, str))
        yield from (module for module in named if module in files and "." in module)


def room_of(module: str) -> str:
    first, _, second = module.partition(".")
    return second.partition(".")[0] or "facade" if first == "xrep" else first


def between_rooms(repository: Path) -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    rooms = {room_of(name): set[str]() for name in imports(repository)}
    for name, targets in imports(repository).items():
        rooms[room_of(name)] |= {room_of(target) for target in targets} - {room_of(name)}
    return rooms


def circle(graph: dict[str, set[str]]) -> str:
    """Return the nodes of a circle in a graph; empty if it has none."""
    try:
        TopologicalSorter({node: targets - {node} for node, targets in graph.items()}).prepare()
    except CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def test_every_module_is_in_a_room(repository: Path) -> None:
    assert [name for name in modules(repository) if room_of(name) not in ROOMS] == []


def test_imports_go_downwards(repository: Path) -> None:
    found = [
        f"{name} imports {target}"
        for name, targets in imports(repository).items()
        for target in targets
        if ROOMS[room_of(target)] > ROOMS[room_of(name)]
    ]
    assert sorted(found) == []


def test_no_module_and_no_room_imports_itself_in_a_circle(repository: Path) -> None:
    assert circle(imports(repository)) == ""
    assert circle(between_rooms(repository)) == ""


def test_modules_are_imported_by_name_in_two_files(repository: Path) -> None:
    """Others may import a library so, whose name is then written there."""
    found = set()
    for name, path in modules(repository).items():
        for call in (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)):
            function = ast.unparse(call.func).rpartition(".")[2]
            written = [argument.value for argument in call.args[:1] if isinstance(argument, ast.Constant)]
            if function in ("import_module", "__import__") and not (written and "xrep" not in written[0]):
                found.add(name)
    assert found == {*LOADERS}


def public_names(module: ast.Module) -> Iterator[str]:
    """Yield the names of classes, functions and constants that a module defines, but for type variables."""
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        for target in [*getattr(node, "targets", []), getattr(node, "target", None)]:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (name.id for name in names if isinstance(name, ast.Name) and len(name.id) > 1)


def test_a_public_name_has_one_meaning(repository: Path) -> None:
    rooms = defaultdict[str, set[str]](set)
    for module, path in modules(repository).items():
        for name in public_names(parsed(path)):
            if not name.startswith("_") and name not in OF_COMMANDS:
                rooms[name].add(room_of(module))
    assert {name: places for name, places in rooms.items() if len(places) > 1} == {}


def test_files_of_one_name_are_about_one_subject(repository: Path) -> None:
    """The subject is what users type: a part (``nli``: its task, criterion, evaluation and so on), or a command."""
    subjects = {name for registry in REGISTRIES.values() for name in registry.names()} | {*PROGRAMS}
    rooms = defaultdict[str, list[str]](list)
    for module, path in modules(repository).items():
        rooms[path.stem].append(module)
    several = {name: files for name, files in rooms.items() if len({*map(room_of, files)}) > 1 and name != "__init__"}
    assert {name: files for name, files in several.items() if name not in subjects} == {}


def test_logits_are_made_in_the_kernels_alone(repository: Path) -> None:
    """Each of these functions would need a whole similarity matrix of a batch, or all logits of a vocabulary."""
    functions = ("cross_entropy(", "softmax(", "logsumexp(", "nll_loss(")
    # The classes of sentences and pairs, and the places of an annotation, are few.
    others = ("xrep.kernels", "xrep.understanding", "xrep.criteria.nli", "xrep.criteria.tlm")
    files = {name: path for name, path in modules(repository).items() if not name.startswith(others)}
    texts = {
        name: path.read_text(encoding="utf-8").replace("linear_cross_entropy(", "") for name, path in files.items()
    }
    assert [(name, function) for name, text in texts.items() for function in functions if function in text] == []


def test_nothing_names_the_plugin(repository: Path) -> None:
    """Not even in a string, so that it is found as the plugins of others are."""
    others = {name: path for name, path in modules(repository).items() if room_of(name) != "understanding"}
    assert [name for name, path in others.items() if "xrep.understanding" in path.read_text(encoding="utf-8")] == []


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
