"""Installs xrep into a virtual environment in steps; called by scripts/setup.sh as install.py SCRIPT VENV [EXTRA].

Each requirement of setup.py is installed in a step of its own, at the version of constraints.txt. If a step fails, what
the steps before it installed is kept, and the next call continues there. Error messages begin with SCRIPT.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
import types
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from xrep.text.package_index import PipFailure, run_pip  # noqa: E402  (xrep is not installed yet)

RESUMES_TRANSFERS = (25, 1)  # the first version of pip that resumes transfers


def main(script: str, venv: Path, extra: str = "") -> int:
    log = venv / ".xrep-pip.log"

    def pip_install(*what: str) -> PipFailure | None:
        arguments = ["install", "-c", "constraints.txt", *what]
        return run_pip(arguments, lambda line: tell(f"    {line}"), python=venv / "bin" / "python", log=log)

    os.chdir(REPOSITORY)
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    remove_half_installed(venv)
    present = installed(venv)
    missing = [line for line in requirements(extra) if present.get(name(line), "missing") != pins.get(name(line))]
    if present.get("setuptools", "missing") != pins.get("setuptools"):
        missing.insert(0, "setuptools")
    for number, requirement in enumerate(missing, 1):
        tell(f"  {number} of {len(missing) + 1}: {name(requirement)}")
        if failure := pip_install(requirement):
            return stop(script, name(requirement), failure, log)
        if requirement == "setuptools" and version(installed(venv).get("pip", "")) < RESUMES_TRANSFERS:
            tell("    pip, at a version that resumes transfers")
            if pip_install("pip"):
                tell("    pip could not be updated: a transfer that breaks off starts again from the beginning")
    tell(f"  {len(missing) + 1} of {len(missing) + 1}: xrep")
    # xrep is built with the pinned setuptools of this environment; pip's own build environment ignores constraints.txt.
    if failure := pip_install("--no-build-isolation", "-e", f".[{extra}]" if extra else "."):
        return stop(script, "xrep", failure, log)
    return 0


def tell(line: str) -> None:
    print(line, flush=True)


def stop(script: str, what: str, failure: PipFailure, log: Path) -> int:
    problem = f"{what} could not be installed: {failure.reason}"
    cure = f"{failure.cure} and run this again (what is installed is kept; pip's log is {log})"
    print(f"{script}: error: {problem}; {cure}", file=sys.stderr)
    return 2


def requirements(extra: str) -> list[str]:
    """Return the requirements of setup.py, which are read without setuptools."""
    given: dict = {}
    stub = types.ModuleType("setuptools")
    stub.setup, stub.find_packages = given.update, lambda **_: []  # type: ignore[attr-defined]
    sys.modules["setuptools"] = stub
    try:
        runpy.run_path("setup.py")
    finally:
        del sys.modules["setuptools"]
    return [*given["install_requires"], *given.get("extras_require", {}).get(extra, [])]


def name(requirement: str) -> str:
    """Return the normalised name, ``huggingface-hub`` for ``huggingface_hub>=0.24; python_version > "3"``."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]*\w", requirement)[0]).lower()  # type: ignore[index]


def version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def installed(venv: Path) -> dict[str, str]:
    """Return ``{name: version}`` of the packages in the environment, without the ``+cpu`` of a version."""
    folders = [path.name.removesuffix(".dist-info").partition("-") for path in distributions(venv)]
    return {name(project): number.partition("+")[0] for project, _, number in folders}


def distributions(venv: Path) -> list[Path]:
    return sorted(venv.glob("lib/python*/site-packages/*.dist-info"))


def remove_half_installed(venv: Path) -> None:
    """Remove the packages that pip was installing when it was killed. INSTALLER is written after a package's files."""
    for path in distributions(venv):
        if not (path / "INSTALLER").exists():
            shutil.rmtree(path)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
