"""Checkpoints of a run that ends at any operation on a file: each with its final name is whole, and the run goes on
from the newest of them to the same final bytes."""

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_checkpoint_writer import Run
from xrep.models.directory import CRITERION, MODEL, checkpoints_in, open_checkpoint

STEPS = 3


class Killed(BaseException):
    """Ends a run as a signal would: nothing catches it, and nothing works after it."""


class Fault:
    """Replaces the functions that change files; from the n-th call in the run's directory on, they fail."""

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path, error: BaseException, limit: int) -> None:
        self.directory, self.error, self.calls, self.limit = str(directory), error, 0, limit
        for module, name in ((os, "replace"), (os, "fsync"), (os, "symlink"), (os, "mkdir"), (builtins, "open")):
            patch.setattr(module, name, self.counting(getattr(module, name), name))

    def counting(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(place: Any, *given: Any, **options: Any) -> Any:
            writes = name != "open" or set("wax+") & set(str(given[0] if given else options.get("mode", "r")))
            if writes and (name == "fsync" or str(place).startswith(self.directory)):
                self.calls += 1
                if self.calls > self.limit:
                    raise self.error
            return function(place, *given, **options)

        return call


def train(directory: Path) -> None:
    """Go on from the newest checkpoint."""
    run = Run(directory, keep_last=1)
    with run.checkpoints as checkpoints:
        latest = checkpoints.latest()
        if latest is not None:
            checkpoints.point(latest.step, latest.step)
        for step in range(1 + (latest.step if latest else 0), STEPS + 1):
            run.save(step, best=True, final=step == STEPS)


def files(directory: Path) -> list[bytes | str]:
    """Return the bytes of the last checkpoint, and the targets of the links."""
    links = [os.readlink(directory / name) for name in ("last", "best")]
    return [*links, *((directory / "last" / name).read_bytes() for name in (MODEL, CRITERION))]


@pytest.mark.slow
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")], ids=["killed", "full"])
def test_a_run_that_ends_at_each_operation(error, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # to wait for a disk takes most of the time
    train(tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        fault = Fault(patch, tmp_path / "counted", error, 10**9)
        train(tmp_path / "counted")
    assert fault.calls > 10 * STEPS
    newest = 0
    for limit in range(fault.calls):
        directory = tmp_path / f"run{limit}"
        with pytest.MonkeyPatch.context() as patch:
            Fault(patch, directory, error, limit)
            with pytest.raises(type(error)):
                train(directory)
        whole = [open_checkpoint(path).step for path in checkpoints_in(directory)] if directory.exists() else []
        assert max(whole, default=0) >= newest, "a later operation lost a checkpoint"
        newest = max(whole, default=0)
        for name in ("last", "best"):
            if (directory / name).is_symlink():
                assert open_checkpoint(directory / name).step in whole
        train(directory)
        assert files(directory) == files(tmp_path / "whole")
        assert not list(directory.glob(".*")), "something unfinished is left"
