"""setup.py, pyproject.toml and constraints.txt agree with each other and with the code."""

import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import xrep
from xrep_cli.xrep import PROGRAMS

REPOSITORY = Path(__file__).parents[2]


def pins() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_requirement_is_pinned_within_its_range(setup_arguments: dict) -> None:
    versions = pins()
    requirements = [*setup_arguments["install_requires"], *sum(setup_arguments["extras_require"].values(), [])]
    for requirement in map(Requirement, requirements):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_pinned_setuptools_can_build_xrep() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("requires = ")]
    requirement = Requirement(line.split('"')[1])
    assert requirement.name == "setuptools" and pins()["setuptools"] in requirement.specifier


def test_every_installed_requirement_is_pinned(setup_arguments: dict) -> None:
    """The test follows the requirements of the installed packages for this Python."""
    versions, seen = pins(), set()
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


def test_the_oldest_python_is_the_one_that_types_are_checked_for(setup_arguments: dict) -> None:
    promised = SpecifierSet(setup_arguments["python_requires"])
    assert [f"3.{minor}" in promised for minor in range(9, 14)] == [False, True, True, True, True]
    assert 'pythonVersion = "3.10"\n' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def test_commands(console_scripts: dict[str, tuple[str, str]]) -> None:
    assert set(console_scripts) == {"xrep", *(f"xrep-{name}" for name in PROGRAMS)}
    for module, function in console_scripts.values():
        assert callable(getattr(importlib.import_module(module), function))


def test_the_version_is_written_once(setup_arguments: dict) -> None:
    assert setup_arguments["version"] == xrep.__version__
    files = [REPOSITORY / "setup.py", *(REPOSITORY / "xrep").glob("*.py"), *(REPOSITORY / "xrep_cli").glob("*.py")]
    version = f'"{xrep.__version__}"'
    assert [path.name for path in files if version in path.read_text(encoding="utf-8")] == ["version.py"]
    assert f"\nversion: {xrep.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")


def test_all_is_every_extra_of_users(setup_arguments: dict) -> None:
    extras = setup_arguments["extras_require"]
    of_users = extras.keys() - {"all", "bench", "dev", "docs", "test"}
    assert set(extras["all"]) == set().union(*(extras[name] for name in of_users))


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.cuda"])
def test_images_are_made_of_what_is_there(file: str, setup_arguments: dict) -> None:
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    copied = " ".join(re.findall(r"^COPY (.+) \S+$", text, flags=re.MULTILINE)).split()
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert set(copied) == {line[1:] for line in ignored if line.startswith("!")}
    assert all((REPOSITORY / name).exists() for name in copied)
    (extras,) = re.findall(r'EXTRAS="(.+)"', text)
    assert set(extras.split(",")) <= setup_arguments["extras_require"].keys()


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the sdist of a copy of the repository, and the wheel that is built of the sdist alone."""
    folder = tmp_path_factory.mktemp("distributions")
    for name in ("xrep", "xrep_cli"):
        shutil.copytree(REPOSITORY / name, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in REPOSITORY.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, folder / "copy")
    run = partial(subprocess.run, check=True, capture_output=True)
    run([sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)], cwd=folder / "copy")
    (sdist,) = folder.glob("xrep-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "--wheel-dir", str(folder), str(sdist)])
    (wheel,) = folder.glob("xrep-*.whl")
    return sdist, wheel


@pytest.mark.nightly
def test_sdist_and_wheel_hold_every_file(distributions: tuple[Path, Path]) -> None:
    sdist, wheel = distributions
    tops = (REPOSITORY / "xrep", REPOSITORY / "xrep_cli")
    files = [path for top in tops for path in top.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    expected = {path.relative_to(REPOSITORY).as_posix() for path in files}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {"xrep/py.typed", "xrep_cli/py.typed"} <= expected <= packed, expected - packed
    assert {name.split("/")[0] for name in packed} == {"xrep", "xrep_cli", f"xrep-{xrep.__version__}.dist-info"}
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert expected | {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt"} <= sources


@pytest.mark.nightly
def test_a_package_index_takes_sdist_and_wheel(distributions: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="pip install twine")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)], check=True)
