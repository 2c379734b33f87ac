"""Folders that are made once for all processes of a run of the tests, and that no test changes."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "XREP_TESTS_SHARED"
"""Environment variable with the folder of all processes of a run of the tests; the first process sets it."""


def shared_folder() -> Path:
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="xrep-tests-")
    return Path(os.environ[VARIABLE])


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder ``name`` that all processes share. The first that asks for it makes it; others wait for it.

    Nobody may change what is in it: ``changed`` tells at the end. Copy what a test changes.
    """
    place = shared_folder() / name
    with open(shared_folder() / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(place)
            place.with_name(f"{name}.json").write_text(json.dumps(_digests(place)), encoding="utf-8")
    return place


def changed() -> list[str]:
    """Return the shared files that tests have changed, added or removed."""
    found = []
    for record in shared_folder().glob("*.json"):
        before, now = json.loads(record.read_text(encoding="utf-8")), _digests(record.with_suffix(""))
        names = {name for name, _ in before.items() ^ now.items()}
        found += [f"{record.stem}/{name}" for name in sorted(names)]
    return found


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
