"""scripts/setup.sh with the real pip and a failing package index on this machine: packages kept, and messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.index_server import IndexServer, serve, tiny_wheel

# A new environment without a pip of its own finds the pip and setuptools of this Python.
PYTHON3 = """#!/bin/sh
case "$*" in
  "-m venv "*) "{python}" -m venv --without-pip "$3" && cp "{folder}/these.pth" "$3"/lib/python3*/site-packages ;;
  *) exec "{python}" "$@" ;;
esac
"""
PROJECT = {
    "setup.py": """from setuptools import setup
setup(name="xrep", version="0.1", packages=[], install_requires=["first-part>=1", "second-part", "third-part"])
""",
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "constraints.txt": f"first-part==1.0\nsecond-part==1.0\nthird-part==1.0\n"
    f"setuptools=={importlib.metadata.version('setuptools')}\n",
}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    pytest.importorskip("pip", reason="the scripts install with pip")
    names = ("first_part", "second_part", "third_part")
    wheels = {f"{name}-1.0-py3-none-any.whl": tiny_wheel(name, {f"{name}.py": b"#" * 100_000}) for name in names}
    with serve(wheels, monkeypatch) as running:
        yield running


@pytest.fixture
def set_up(
    repository: Path, tmp_path: Path, index: IndexServer, write_executable: Callable[[Path, str], None]
) -> Callable[..., tuple[int, list[str]]]:
    """``set_up(environment)`` runs ``set_up ""`` as scripts/demo does and imports the parts."""
    root = tmp_path / "a checkout"
    shutil.copytree(repository / "scripts", root / "scripts")
    for name in ("xrep/__init__.py", "xrep/lazy.py", "xrep/text/__init__.py", "xrep/text/package_index.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, root / name)
    for name, text in PROJECT.items():
        (root / name).write_text(text, encoding="utf-8")
    packages = {str(Path(importlib.import_module(name).__file__ or "").parents[1]) for name in ("pip", "setuptools")}
    (tmp_path / "these.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
    write_executable(tmp_path / "bin" / "python3", PYTHON3.format(python=sys.executable, folder=tmp_path))
    code = 'import first_part, second_part, third_part; print("all parts are there")'
    demo = f'#!/bin/bash\nset -euo pipefail\n. "$(dirname -- "$0")/setup.sh"\nset_up ""\npython -c \'{code}\'\n'
    write_executable(root / "scripts" / "demo", demo)

    def run(**environment: str) -> tuple[int, list[str]]:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        given = {
            name: value for name, value in os.environ.items() if name not in ("PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
        }
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = [str(root / "scripts" / "demo")]
        done = subprocess.run(command, env={**given, "PATH": path, **environment}, text=True, cwd=tmp_path, **pipes)
        return done.returncode, done.stdout.splitlines()

    return run


@pytest.mark.slow
def test_it_goes_on_where_a_failing_index_stopped_it(set_up: Callable, index: IndexServer) -> None:
    index.fault, index.fault_in = "503", "/simple/second-part/"
    code, lines = set_up(PIP_RETRIES="0")
    assert code == 2, lines
    (error,) = [line for line in lines if "error" in line]
    assert error == lines[-1] and "demo: error: second-part could not be installed: the package index answered" in error
    assert "error 503; check the network" in error and "what is installed is kept" in error
    steps = [line for line in lines if " of 5: " in line]
    assert steps == ["  1 of 5: setuptools", "  2 of 5: first-part", "  3 of 5: second-part"]

    # Now the first transfer breaks off in the middle; first-part is not requested again.
    index.fault, index.fault_in, index.faults_left = "close half-way", "/files/", 1
    index.requests.clear()
    code, lines = set_up()
    assert code == 0 and lines[-1] == "all parts are there", "\n".join(lines)
    assert not any("first" in path for path in index.requests)
    assert index.transfers("second_part") == 2 and index.transfers("third_part") == 1
    assert "Making" not in "\n".join(lines)

    index.requests.clear()
    code, lines = set_up(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert (code, lines, index.requests) == (0, ["all parts are there"], [])


@pytest.mark.slow
def test_an_index_that_does_not_answer_is_one_line(set_up: Callable, index: IndexServer) -> None:
    index.fault = "stall"
    code, lines = set_up(PIP_TIMEOUT="1", PIP_RETRIES="1")
    assert code == 2 and "first-part could not be installed: the package index did not answer in time" in lines[-1]
    assert "    the package index does not answer; pip tries again" in lines
    code, lines = set_up(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    assert code == 2 and "the package index cannot be reached; check the network" in lines[-1]
