"""The help of every criterion: it shows all of its options, and it does not wait for torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from tests.support.runs import environment
from xrep.registry import CRITERIA


@pytest.mark.parametrize("name", ["cmlm", "dap", "dual_moco", "frozen_source", "hictl", "nli", "tlm"])
def test_help_shows_every_option_without_torch(name: str) -> None:
    code = "import sys; from xrep_cli.train import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    line = [sys.executable, "-c", code, "--task", "bitext", "--criterion", name, "--help"]
    finished = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    options = [field.name.replace("_", "-") for field in dataclasses.fields(CRITERIA.load(name).Config)]
    assert [option for option in options if f"\n  --{option}" not in finished.stdout] == []
