"""A run that is killed by the system goes on to the same bytes."""

import os
import signal
import subprocess
import time

import pytest

from tests.support.runs import command, environment, figures, options
from xrep_cli.train import main


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(data_directory, tmp_path, capfd):
    given = options(max_steps=40, save_every=10, validate_every=20, log_every=10)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    line = command(data_directory, *given, "--save-dir", killed)
    with subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL) as process:
        while not list(killed.glob("checkpoint-*")) and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (killed / "summary.json").exists()
    for run in (killed, whole):
        assert main([str(data_directory), *given, "--save-dir", str(run)]) == 0
    assert f"going on from {killed}/checkpoint-" in capfd.readouterr().err
    for name in ("model.safetensors", "criterion.safetensors"):
        assert (killed / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()
    assert os.readlink(killed / "best") == os.readlink(whole / "best") and figures(killed) == figures(whole)
