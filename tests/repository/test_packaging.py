"""setup.py, pyproject.toml and constraints.txt agree with each other and with the code."""

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import xrep
from xrep_cli.xrep import PROGRAMS


def pins(repository: Path) -> dict[str, str]:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_requirement_is_pinned_within_its_range(repository: Path, setup_arguments: dict) -> None:
    versions = pins(repository)
    requirements = [*setup_arguments["install_requires"], *sum(setup_arguments["extras_require"].values(), [])]
    for requirement in map(Requirement, requirements):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_pinned_setuptools_can_build_xrep(repository: Path) -> None:
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("requires = ")]
    requirement = Requirement(line.split('"')[1])
    assert requirement.name == "setuptools" and pins(repository)["setuptools"] in requirement.specifier


def test_every_installed_requirement_is_pinned(repository: Path, setup_arguments: dict) -> None:
    """The test follows the requirements of the installed packages for this Python."""
    versions, seen = pins(repository), set()
    todo = [Requirement(line) for line in setup_arguments["install_requires"]]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        assert name in versions, f"constraints.txt does not pin {name}"
        todo += [Requirement(line) for line in importlib.metadata.requires(name) or []]
    assert len(seen) > len(setup_arguments["install_requires"])


def test_the_oldest_python_is_the_one_that_types_are_checked_for(repository: Path, setup_arguments: dict) -> None:
    promised = SpecifierSet(setup_arguments["python_requires"])
    assert [f"3.{minor}" in promised for minor in range(9, 14)] == [False, True, True, True, True]
    assert 'pythonVersion = "3.10"\n' in (repository / "pyproject.toml").read_text(encoding="utf-8")


def test_commands(console_scripts: dict[str, tuple[str, str]]) -> None:
    assert set(console_scripts) == {"xrep", *(f"xrep-{name}" for name in PROGRAMS)}
    for module, function in console_scripts.values():
        assert callable(getattr(importlib.import_module(module), function))


def test_the_version_is_written_once(repository: Path, setup_arguments: dict) -> None:
    assert setup_arguments["version"] == xrep.__version__
    files = [repository / "setup.py", *(repository / "xrep").glob("*.py"), *(repository / "xrep_cli").glob("*.py")]
    version = f'"{xrep.__version__}"'
    assert [path.name for path in files if version in path.read_text(encoding="utf-8")] == ["version.py"]


@pytest.mark.nightly
def test_wheel_holds_every_file(repository: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("xrep", "xrep_cli"):
        shutil.copytree(repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, copy)
    expected = {path.relative_to(copy).as_posix() for top in ("xrep", "xrep_cli") for path in (copy / top).rglob("*.*")}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(copy)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("xrep-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected <= names, expected - names
    assert {"xrep/py.typed", "xrep_cli/py.typed"} <= names
    assert not any(name.startswith("tests/") for name in names)
