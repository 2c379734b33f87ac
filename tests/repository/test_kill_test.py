"""scripts/kill_test.py: a few runs of it, and differences that it has to find."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.runs import environment
from xrep.data.batching import TextSpec
from xrep.training.checkpoint import Checkpoints


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_not_been(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, repository / "scripts" / "kill_test.py", "--runs", "1"]
    given = {**environment(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    *runs, kills, last = done.stdout.splitlines()
    assert last == "1 of 1 identical" and len(runs) == 1
    assert re.match(r"[12] kills, [0-2] of them while saving; ", kills), kills
    assert not list(tmp_path.glob("xrep-kill-*"))


class Model(nn.Linear):
    def architecture(self) -> dict:
        return {}


def write_run(directory: Path) -> Path:
    """Train a run of two steps."""
    torch.manual_seed(1)
    model = Model(3, 3)
    with Checkpoints(Checkpoints.Config(), directory) as checkpoints:
        for step in (1, 2):
            state = {"step": step, "seconds": torch.rand(()).item(), "optimizer": {"state": {0: torch.ones(2)}}}
            checkpoints.save(
                best=True,
                step=step,
                config_yaml="{}",
                text=TextSpec(vocabularies={}, max_length=8),
                save_tokenizers=Path.mkdir,
                model=model,
                criterion=nn.Linear(1, 1),
                training_state=state,
            )
    records = [{"step": step, "kind": "train", "loss": 0.5, "seconds": 1.0} for step in (1, 2)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return directory


def test_what_differs_is_named(repository: Path, tmp_path: Path) -> None:
    script = runpy.run_path(str(repository / "scripts" / "kill_test.py"))
    result, differences = script["result"], script["differences"]
    expected = result(write_run(tmp_path / "run"))
    assert {"last", "best", "checkpoints", "state.step", "model.weight", "criterion.bias"} < expected.keys()
    assert {"state.optimizer.state.0", "metrics.jsonl line 2.loss"} < expected.keys()
    assert not [name for name in expected if "second" in name]
    assert differences(expected, result(tmp_path / "run")) == []
    for name, value in expected.items():
        other = value + 1 if isinstance(value, (torch.Tensor, float, int)) else value[:-1]
        assert differences(expected, {**expected, name: other}) == [name]
        assert differences(expected, {key: kept for key, kept in expected.items() if key != name}) == [name]
    (tmp_path / "run" / ".checkpoint-00000003.0a1b2c3d.partial").mkdir()
    assert differences(expected, result(tmp_path / "run")) == ["checkpoints"]
