"""pyright: types agree, and the code works with the oldest Python of setup.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet


def check_types(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run pyright on a folder with a pyproject.toml; it reads the packages of the environment that runs the tests."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYRIGHT_")}
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"  # else it asks for a newer version
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_pyright(repository: Path) -> None:
    result = check_types(repository)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_oldest_python_is_checked(repository: Path, setup_arguments: dict) -> None:
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("pythonVersion = ")]
    major, minor = map(int, line.split('"')[1].split("."))
    promised = SpecifierSet(setup_arguments["python_requires"])
    assert f"{major}.{minor}" in promised and f"{major}.{minor - 1}" not in promised


def test_what_a_newer_python_has_is_found(repository: Path, tmp_path: Path) -> None:
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for package in ("xrep", "xrep_cli"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "xrep" / "digest.py").write_text("import hashlib\n\nprint(hashlib.file_digest)\n", encoding="utf-8")
    result = check_types(tmp_path)
    assert result.returncode == 1 and '"file_digest" is not a known attribute' in result.stdout, result.stderr
