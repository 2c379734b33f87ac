"""A run that ends at any step of writing a checkpoint goes on from the last complete one, to the same final bytes."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import compose_run
from xrep.errors import UserError
from xrep.models.directory import CRITERION, MODEL, checkpoints_in, open_checkpoint
from xrep.training.run import train

TINY = {
    "hidden_size": 8, "heads": 1, "feedforward_size": 8, "criterion": "dual_moco", "max_steps": 4, "save_every": 2,
    "validate_every": 4, "queue_size": 10,
}  # fmt: skip


class Killed(BaseException):
    """Ends a run as a signal would: nothing catches it, and nothing works after it."""


class Fault:
    """Replaces the functions that change files; from the n-th call in the run's directory on, they fail."""

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path, error: Callable[[], BaseException]) -> None:
        self.directory, self.error, self.calls, self.limit = str(directory), error, 0, 10**9
        for module, name in ((os, "replace"), (os, "fsync"), (os, "symlink"), (os, "mkdir"), (builtins, "open")):
            patch.setattr(module, name, self.counting(getattr(module, name), name))

    def counting(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            writes = name != "open" or set("wax+") & set(str(given[1] if len(given) > 1 else options.get("mode", "r")))
            if writes and (name == "fsync" or str(given[0]).startswith(self.directory)):
                self.calls += 1
                if self.calls > self.limit:
                    raise self.error()
            return function(*given, **options)

        return call


def final(directory: Path) -> list[bytes]:
    return [(directory / "last" / name).read_bytes() for name in (MODEL, CRITERION)]


def stopping_at_each_call(data: Path, folder: Path, error: Callable[[], BaseException], step: int) -> tuple[int, int]:
    """Return in how many places a run was stopped, and in how many of these it did not end by itself."""
    train(compose_run(data, folder / "whole", **TINY))
    expected = final(folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        fault = Fault(patch, folder / "counted", error)
        train(compose_run(data, folder / "counted", **TINY))
    assert fault.calls > 30
    ended = 0
    places = range(0, fault.calls, step)
    for limit in places:
        directory = folder / f"run{limit}"
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, directory, error)
            fault.limit = limit
            try:
                train(compose_run(data, directory, **TINY))
            except (Killed, OSError, UserError):
                ended += 1
        for path in checkpoints_in(directory) if directory.exists() else ():
            open_checkpoint(path)  # every checkpoint with its final name is complete
        train(compose_run(data, directory, **TINY))
        assert final(directory) == expected, limit
        left = sorted(path.name for path in directory.iterdir() if path.name.startswith((".checkpoint", ".last")))
        assert left == [], limit
    return len(places), ended


@pytest.mark.slow
def test_a_run_that_is_killed_at_each_call(data_directory: Path, tmp_path: Path) -> None:
    places, ended = stopping_at_each_call(data_directory, tmp_path, Killed, step=1)
    assert ended >= places - 1


@pytest.mark.slow
def test_a_disk_that_is_full_at_each_call(data_directory: Path, tmp_path: Path) -> None:
    """The run may end or go on without a checkpoint; once there is room, it goes on."""
    no_space = lambda: OSError(errno.ENOSPC, "No space left on device")  # noqa: E731
    places, ended = stopping_at_each_call(data_directory, tmp_path, no_space, step=5)
    assert 0 < ended <= places
