"""scripts/setup.sh as scripts/test runs it: environments made, kept, made again and refused. Only pip is replaced."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ENVIRONMENT_PYTHON = """#!/bin/sh
case "$*" in
  "-m pip install "*) echo "$*" >>"{folder}/pip.log"; exit "$(cat "{folder}/pip.exit")" ;;
  *) exec "{python}" "$@" ;;
esac
"""
PYTHON3 = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "{folder}/environment-python" "$3/bin/python" ;;
  *) exec "{python}" "$@" ;;
esac
"""


class Checkout:
    """A copy of the scripts with a python3 whose environments record what pip is asked to install."""

    def __init__(self, repository: Path, folder: Path, write_executable: Callable[[Path, str], None]) -> None:
        self.folder, self.root, self.write_executable = folder, folder / "a checkout", write_executable
        shutil.copytree(repository / "scripts", self.root / "scripts")
        for name in ("setup.py", "pyproject.toml", "constraints.txt", "README.md"):
            shutil.copy(repository / name, self.root)
        (self.root / "tests").mkdir()
        tests = "import pytest\ndef test_one():\n    pass\n@pytest.mark.slow\ndef test_slow():\n    pass\n"
        (self.root / "tests" / "test_one.py").write_text(tests, encoding="utf-8")
        for name, text in (("environment-python", ENVIRONMENT_PYTHON), ("bin/python3", PYTHON3)):
            write_executable(folder / name, text.format(folder=folder, python=sys.executable))
        self.pip_ends_with(0)

    def pip_ends_with(self, code: int) -> None:
        (self.folder / "pip.exit").write_text(str(code), encoding="utf-8")

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, list[str]]:
        """Return exit code and output of scripts/test, and what pip was asked to install."""
        log = self.folder / "pip.log"
        log.write_text("", encoding="utf-8")
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # With PYTHON the script would use another interpreter than the python3 of this checkout.
        inherited = {n: value for n, value in os.environ.items() if n != "PYTHON" and not n.startswith("PYTEST")}
        del inherited["XREP_HOME"]
        inherited["PYTEST_XDIST_AUTO_NUM_WORKERS"] = "0"
        result = subprocess.run(
            ["bash", str(self.root / "scripts" / "test"), *arguments],
            cwd=self.folder,
            env={**inherited, "PATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = log.read_text(encoding="utf-8").splitlines()
        assert all(line.startswith("-m pip install -c constraints.txt ") for line in lines)
        asked = [line.partition(" --disable-pip-version-check ")[2] for line in lines]
        return result.returncode, result.stdout, asked


@pytest.fixture
def checkout(repository: Path, tmp_path: Path, write_executable: Callable[[Path, str], None]) -> Checkout:
    return Checkout(repository, tmp_path, write_executable)


@pytest.mark.nightly
def test_installs_once_and_again_when_the_pins_change(checkout: Checkout) -> None:
    checkout.pip_ends_with(1)
    assert checkout.run()[0] == 2
    checkout.pip_ends_with(0)
    code, output, installed = checkout.run()
    assert code == 0 and "is not finished" in output
    assert output.splitlines()[-1].startswith("2 passed in ")
    assert installed == ["pip setuptools", "--no-build-isolation -e .[test]"]

    code, output, installed = checkout.run("--quick", "-n", "2")
    assert code == 0 and installed == [] and "Making" not in output
    assert output.splitlines()[-1].startswith("1 passed")
    code, output, _ = checkout.run("-n", "0", "tests/test_one.py", "-k", "slow", "--quick")
    assert code == 5 and output.splitlines()[-1].startswith("2 deselected")

    with (checkout.root / "constraints.txt").open("a", encoding="utf-8") as constraints:
        constraints.write("another-package==1.0\n")
    checkout.pip_ends_with(1)
    code, output, installed = checkout.run()
    assert code == 2 and output.splitlines()[-1].startswith(f"{checkout.root}/scripts/test: error: pip could not")
    checkout.pip_ends_with(0)
    code, output, installed = checkout.run()
    assert code == 0 and installed[-1].endswith(".[test]") and "Making" not in output


def test_environment_of_the_user_is_never_removed(checkout: Checkout) -> None:
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "mine").touch()
    code, output, installed = checkout.run()
    assert code == 2 and "move" in output and installed == []
    assert (checkout.root / ".venv" / "mine").exists()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (None, "there is no"),
        ("#!/bin/sh\ncase $1 in -V) echo Python 3.9.1;; *) exit 1;; esac\n", "is Python 3.9.1, and xrep needs"),
        (f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n', "without venv"),
    ],
    ids=["missing", "too old", "no venv"],
)
def test_unfit_python_is_one_line(checkout: Checkout, script: str | None, problem: str) -> None:
    python = checkout.folder / "unfit"
    if script:
        checkout.write_executable(python, script)
    code, output, installed = checkout.run(PYTHON=str(python))
    (line,) = output.splitlines()
    assert code == 2 and problem in line and "PYTHON=" in line
    assert installed == [] and not (checkout.root / ".venv").exists()


@pytest.mark.parametrize("script", ["scripts/test", "scripts/demo", ".ci/run"])
def test_scripts_can_be_executed(repository: Path, script: str) -> None:
    assert os.access(repository / script, os.X_OK)
    subprocess.run(["bash", "-n", str(repository / script)], check=True)


def test_workflows_call_what_is_there(repository: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (repository / ".github" / "workflows").glob("*.yml"))
    called = set(re.findall(r"\b(?:scripts|benchmarks)/[\w.]+", text))
    assert {"scripts/test", "scripts/docs", "benchmarks/gpu.py"} == called
    assert all((repository / name).exists() for name in called)
