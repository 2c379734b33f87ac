"""xrep-train in processes of its own: killed, refused, and without disk space."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.support.corpus import write_corpus
from tests.support.runs import command, contents, environment, options, refusal, xrep_train
from xrep.models.directory import open_checkpoint
from xrep_cli.train import main


def steps_and_losses(directory):
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r["kind"], r.get("loss"), r["accuracy"]) for r in records]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL on this system")
def test_a_killed_run_ends_as_if_it_had_not_been(data_directory, tmp_path, capfd):
    given = options(max_steps=150, save_every=10, validate_every=20, log_every=10)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert xrep_train(data_directory, *given, "--save-dir", whole).returncode == 0
    line = command(data_directory, *given, "--save-dir", killed)
    process = subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL)
    while not list(killed.glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "summary.json").exists()
    resumed = xrep_train(data_directory, *given, "--save-dir", killed)
    assert resumed.returncode == 0 and f"going on from {killed}/checkpoint-" in resumed.stderr
    for name in ("model.safetensors", "criterion.safetensors"):
        assert (killed / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()
    assert os.readlink(killed / "best") == os.readlink(whole / "best")
    assert steps_and_losses(killed) == steps_and_losses(whole)
    assert [step for step, kind, *_ in steps_and_losses(killed) if kind == "train"] == list(range(10, 151, 10))

    before = contents(killed)
    assert main([str(data_directory), *given, "--save-dir", str(killed)]) == 0
    assert "this run is finished" in capfd.readouterr().err
    after = contents(killed)
    assert {name for name in after if after[name] != before.get(name)} == {"log.txt", "launches.jsonl"}


def test_raw_text_is_prepared_and_trained_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    corpus = write_corpus(tmp_path / "corpus", train=200, valid=30, test=30)
    given = options(vocab_size=100, max_steps=6, criterion="translation_ranking")
    for _ in range(2):
        finished = xrep_train(corpus, *given, "--save-dir", tmp_path / "run")
        assert finished.returncode == 0, finished.stderr
    assert "preprocessing" not in finished.stdout  # only once
    assert open_checkpoint(tmp_path / "run" / "best").step == 6


REFUSALS = {
    "unknown criterion": (["--criterion", "dual_moko"], "unknown criterion 'dual_moko'; did you mean 'dual_moco'?"),
    "negative queue size": (["--queue-size", "-5"], "criterion.queue_size must be at least 0, not -5"),
    "no YAML": (["--config", "broken.yaml"], "broken.yaml:1: not a valid configuration: "),
    "no checkpoint": (
        ["--init", "nowhere"],
        "nowhere: no such checkpoint; name a directory such as RUN/best or RUN/last",
    ),
    "few pairs": (["--batch-size", "900"], "630 training pairs do not fill a batch of 900; lower --batch-size"),
    "long": (
        ["--max-length", "99"],
        "sentences may have 99 subwords, the model has 32 positions; lower --max-length or",
    ),
    "towers": (["--towers", "separate", "--lr", "-1"], "optimizer.lr must be at least 0, not -1.0"),
    "not a directory": (
        ["--save-dir", "broken.yaml"],
        "broken.yaml: is a file, not a directory; choose another --save-dir",
    ),
    "holds no run": (["--save-dir", "."], ".: is not empty and holds no run; choose another --save-dir"),
}


@pytest.mark.parametrize(("given", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_are_one_line(data_directory, tmp_path, monkeypatch, given, message):
    (tmp_path / "broken.yaml").write_text("task: [")
    monkeypatch.chdir(tmp_path)
    line = refusal(xrep_train(data_directory, *options(max_steps=1, save_dir="run"), *given))
    assert message in line
    assert os.listdir(tmp_path) == ["broken.yaml"]


@pytest.mark.parametrize("data", ["nowhere", "empty", "one_side"])
def test_data_that_cannot_be_read_is_refused(tmp_path, data):
    (tmp_path / "empty").mkdir()
    (tmp_path / "one_side").mkdir()
    (tmp_path / "one_side" / "train.de-en.de").write_text("Guten Tag\n")
    line = refusal(xrep_train(tmp_path / data, *options(max_steps=1, save_dir=tmp_path / "run")))
    assert str(tmp_path / data) in line and "; " in line
    assert not (tmp_path / "run").exists()


def test_all_problems_at_once_before_any_data_is_read(tmp_path):
    wrong = [
        "--queue-size",
        "-5",
        "--temperature",
        "hot",
        "--batch-sise",
        "3",
        "trainer.max_step=4",
        "--clip-norm",
        "-1",
    ]
    finished = xrep_train(tmp_path / "nowhere", *options(), *wrong)
    assert finished.returncode == 2
    assert [line.split(": error: ")[1].split(";")[0] for line in finished.stderr.splitlines()] == [
        "unknown option --batch-sise", "criterion.temperature must be a finite number, not 'hot'",
        "criterion.queue_size must be at least 0, not -5", "unknown key trainer.max_step",
        "trainer.clip_norm must be at least 0, not -1.0",
    ]  # fmt: skip


def test_a_gradient_beyond_numbers_ends_the_run(data_directory, tmp_path):
    given = options(max_steps=50, lr=1e38, weight_decay=0, warmup_steps=0, save_every=1, norm="pre")
    line = refusal(xrep_train(data_directory, *given, "--save-dir", tmp_path / "run"), code=1)
    step = int(re.match(r"step (\d+): the (loss|norm of the gradient) is (nan|inf); it begins in ", line)[1])
    last = tmp_path / "run" / f"checkpoint-{step - 1:08d}"
    assert f"; last good checkpoint: {last}; lower --lr" in line
    assert open_checkpoint(last).step == step - 1


def no_namespaces() -> bool:
    tried = shutil.which("unshare") and subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    )
    return not tried or tried.returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(no_namespaces(), reason="this system does not let a user mount a file system of his own")
@pytest.mark.parametrize("room", [0, 0.3, 1.6])
def test_a_full_disk_leaves_nothing_half_written(data_directory, tmp_path, room):
    """The disks have space for the configuration, for a third of a checkpoint, or for one checkpoint but not two."""
    given = options(max_steps=20, save_every=5, validate_every=10)
    assert main([str(data_directory), *given, "--max-steps", "1", "--save-dir", str(tmp_path / "first")]) == 0
    size = sum(-(-len(data) // 4096) * 4 for data in contents(tmp_path / "first" / "checkpoint-00000001").values())
    kilobytes = (4 if room == 0 else 28) + int(room * size)
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    line = command(data_directory, *given, "--save-dir", disk / "run")
    # The disk disappears with the process, so its files are copied before that.
    script = (
        'mount -t tmpfs -o size="$1"k none "$2" || exit 99\n'
        'out="$3"; shift 3; "$@"; code=$?; cp -a "$0"/. "$out"; exit $code'
    )
    unshare = ["unshare", "-rm", "sh", "-c", script, str(disk), str(kilobytes), str(disk), str(copy), *line]
    copy.mkdir()
    error = refusal(subprocess.run(unshare, capture_output=True, text=True, env=environment()))
    assert error.startswith(f"{disk / 'run'}")
    assert error.endswith(": No space left on device; free some space and run the command again")
    left = {path.name for path in (copy / "run").iterdir()}
    whole = {"checkpoint-00000005", "last", "best", "data.json", "log.txt", "launches.jsonl"}
    assert left <= {".lock", "config.yaml", "training_hashes.npy", "metrics.jsonl", *whole}
    assert ("checkpoint-00000005" in left) == (room > 1)
    if room > 1:
        assert open_checkpoint(copy / "run" / "last").step == 5
    # With enough space the same command continues the run.
    shutil.copytree(copy / "run", tmp_path / "roomy", symlinks=True)
    assert main([str(data_directory), *given, "--save-dir", str(tmp_path / "roomy")]) == 0
    assert open_checkpoint(tmp_path / "roomy" / "last").step == 20


def test_a_run_on_a_cpu_has_a_small_model_and_says_so(data_directory, tmp_path, capfd):
    given = ["--task", "bitext", "--criterion", "translation_ranking", "--device", "cpu", "--max-steps", "1"]
    for extra, says in (([], True), (["--size", "tiny"], False), (["--layers", "2"], False)):
        line = [str(data_directory), *given, *extra, "--save-dir", str(tmp_path / str(says)), "--no-tensorboard"]
        shutil.rmtree(tmp_path / str(says), ignore_errors=True)
        assert main(line) == 0
        assert ("a small model for CPUs; size base is that of BERT\n" in "".join(capfd.readouterr())) == says
    towers = open_checkpoint(tmp_path / "True" / "last").manifest["architecture"]["towers"]
    assert {(shape["layers"], shape["hidden_size"]) for shape in towers.values()} == {(1, 192)}
