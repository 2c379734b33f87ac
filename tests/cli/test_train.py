"""Runs of ``xrep-train``: killed, on raw text, and with a gradient that is no number."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.corpus import write_corpus
from tests.support.programs import Program
from tests.support.runs import contents, environment, figures, options
from xrep.models.directory import open_checkpoint


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL on this system")
def test_a_killed_run_ends_as_if_it_had_not_been(data_directory: Path, cli: Commands) -> None:
    line = [data_directory, *options(max_steps=40, save_every=10, validate_every=20, log_every=10), "--save-dir"]
    whole, killed = cli.folder / "whole", cli.folder / "killed"
    assert cli("train", *line, whole).code == 0
    process = Program("xrep_cli.train", [*line, killed], environment(threads=1))
    while not list(killed.glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (killed / "summary.json").exists()
    resumed = cli("train", *line, killed)
    assert resumed.code == 0 and f"going on from {killed}/checkpoint-" in resumed.err
    for name in ("model.safetensors", "criterion.safetensors"):
        assert (killed / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()
    assert os.readlink(killed / "best") == os.readlink(whole / "best")
    assert figures(killed) == figures(whole)
    assert [record["step"] for record in figures(killed) if record["kind"] == "train"] == [10, 20, 30, 40]
    before = contents(killed)
    assert "this run is finished" in cli("train", *line, killed).err
    after = contents(killed)
    assert {name for name in after if after[name] != before.get(name)} == {"log.txt", "launches.jsonl"}


@pytest.mark.slow
def test_raw_text_is_prepared_once_and_trained_on(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XREP_HOME", str(cli.folder / "home"))
    corpus = write_corpus(cli.folder / "corpus", train=200, valid=30, test=30)
    given = options(vocab_size=100, max_steps=6, criterion="translation_ranking", save_dir="run")
    first, second = (cli("train", corpus, *given) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert "preprocessing" in first.out and "preprocessing" not in second.out
    assert open_checkpoint(cli.folder / "run" / "best").step == 6


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
