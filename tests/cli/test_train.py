"""Runs of ``xrep-train`` with a gradient that is no number, and on a CPU without a size."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.runs import options
from xrep.models.directory import open_checkpoint


@pytest.mark.slow
def test_a_gradient_beyond_numbers_ends_the_run(data_directory: Path, cli: Commands) -> None:
    given = options(max_steps=50, lr=1e38, weight_decay=0, warmup_steps=0, save_every=1, norm="pre", save_dir="run")
    done = cli("train", data_directory, *given)
    line = done.err.splitlines()[-1]
    found = re.search(r"step (\d+): the (loss|norm of the gradient) is (nan|inf); it begins in ", line)
    assert done.code == 1 and found and "Traceback" not in done.err
    last = f"run/checkpoint-{int(found[1]) - 1:08d}"
    assert f"; last good checkpoint: {last}; lower --lr" in line
    assert open_checkpoint(cli.folder / last).step == int(found[1]) - 1


@pytest.mark.slow
def test_a_run_on_a_cpu_has_a_small_model_and_says_so(data_directory: Path, cli: Commands) -> None:
    line = "--task bitext --criterion translation_ranking --device cpu --max-steps 1 --no-tensorboard --save-dir run"
    for extra, says in ((["--size", "tiny"], False), (["--layers", "2"], False), ([], True)):
        shutil.rmtree(cli.folder / "run", ignore_errors=True)
        done = cli("train", data_directory, *line.split(), *extra)
        assert ("a small model for CPUs; size base is that of BERT\n" in done.out + done.err) == says
    manifest = json.loads((cli.folder / "run" / "last" / "manifest.json").read_text())
    towers = manifest["architecture"]["towers"]
    assert {(shape["layers"], shape["hidden_size"]) for shape in towers.values()} == {(1, 192)}
