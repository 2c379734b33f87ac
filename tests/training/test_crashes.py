"""Checkpoints of a run that ends at any operation on a file: each with its final name is whole, and the run goes on
from the newest of them to the same final bytes."""

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from xrep.data.batch import TextSpec
from xrep.models.directory import CRITERION, MODEL, checkpoints_in, open_checkpoint
from xrep.training.checkpoint import Checkpoints

STEPS = 3


class Model(nn.Linear):
    def architecture(self) -> dict:
        return {"layers": 1}


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
    """Go on from the newest checkpoint. Training only writes the number of the step into the weights."""
    directory.mkdir(exist_ok=True)
    model, criterion = Model(4, 4), nn.Linear(4, 1)
    with Checkpoints(Checkpoints.Config(keep_last=1), directory, lambda line: None) as checkpoints:
        latest = checkpoints.latest()
        if latest is not None:
            checkpoints.point(latest.step, latest.step)
        for step in range(1 + (latest.step if latest else 0), STEPS + 1):
            for parameter in (*model.parameters(), *criterion.parameters()):
                nn.init.constant_(parameter, step)
            state = {"step": step, "moment": torch.full((3,), step)}
            facts = {"config_yaml": "{}", "text": TextSpec(vocabularies={}, max_length=8), "step": step}
            facts |= {"model": model, "criterion": criterion, "training_state": state, "save_tokenizers": Path.mkdir}
            checkpoints.save(True, step == STEPS, **facts)


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
