"""A run that stops and goes on is the run that never stopped, bit by bit."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.corpus import write_lines
from tests.support.runs import command, compose_run, environment, figures, going_on_is_never_stopping, options
from xrep.models.directory import open_checkpoint
from xrep.training.run import train
from xrep_cli.train import main

pytestmark = pytest.mark.slow
RUNS: dict[str, dict[str, Any]] = {
    "queues, dropout and validations": {"validate_every": 1, "save_every": 2},
    "masks and data workers": {"criterion": "mlm", "data_workers": 2},
    "pieces": {"criterion": "translation_ranking", "micro_batch": 8},
    "accumulation": {"update_freq": 2, "activation_checkpointing": None},
    "LoRA": {"lora_rank": 3},
    "LAMB": {"optimizer": "lamb", "lr_multipliers": "*_embedding=0.5", "weight_decay": 0.1},
    "SGD": {"optimizer": "sgd"},
    "thawing": {"freeze": "encoders.shared.layers.0,*.token_embedding@4", "layers": 2},
    "bf16": {"precision": "bf16"},
    "two towers": {"towers": "separate", "projection_size": 8},
}


@pytest.mark.parametrize("name", RUNS)
def test_going_on_is_never_stopping(data_directory: Path, tmp_path: Path, name: str) -> None:
    # Every run validates at its end, and has a warm-up that ends before it.
    given = {"validate_every": 3, "warmup_steps": 2, **RUNS[name]}
    run = going_on_is_never_stopping(data_directory, tmp_path, **given)
    once, twice = (json.loads((place / "summary.json").read_text()) for place in (tmp_path / "once", run))
    assert (once["steps"], once["examples"], once["best"]) == (twice["steps"], twice["examples"], twice["best"])
    assert once["steps"] == 6 and once["examples"] == 180 * RUNS[name].get("update_freq", 1)


def test_queues_keep_the_vectors_of_a_guide(data_directory: Path, tmp_path: Path) -> None:
    texts = (path.read_text(encoding="utf-8") for path in (data_directory.parent / "raw").glob("train.*"))
    lines = [side for text in texts for line in text.splitlines() for side in line.split("\t")]
    np.save(tmp_path / "guide.npy", np.random.default_rng(0).normal(size=(len(lines), 5)))
    given: dict[str, Any] = {"mask_margin": 0.0, "data_workers": 1, "warmup_steps": 2, "validate_every": 3}
    given |= {"guide": tmp_path / "guide.npy", "guide_text": write_lines(tmp_path / "guide.txt", lines)}
    run = going_on_is_never_stopping(data_directory, tmp_path, **given)
    kept = load_file(run / "last" / "criterion.safetensors")["target_queue.guide"]
    assert kept.shape == (100, 5)
    torch.testing.assert_close(kept.norm(dim=1), torch.ones(100))


def test_another_batch_size_misses_and_repeats_nothing(data_directory, two_terms, tmp_path):
    run = {"criterion": "two_terms", "save_dir": tmp_path / "run"}
    train(compose_run(data_directory, **run, batch_size=70, max_steps=4))
    before = two_terms.seen
    train(compose_run(data_directory, **run, batch_size=50, update_freq=2, max_epochs=1))
    after = two_terms.seen
    assert {len(batch) for batch in before} == {70} and [len(batch) for batch in after] == [50] * 7
    assert sorted(index for batch in before + after for index in batch) == list(range(630))


HEAD = {f"masked_lm.heads.shared.{name}" for name in
        ("bias", "dense.bias", "dense.weight", "norm.bias", "norm.weight")}  # fmt: skip
QUEUE = {"queue.vectors", "queue.ids", "queue.count"}
OBJECTIVES: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "cmlm": ({"projections": 3}, HEAD | {f"spaces.perceptrons.{space}.{layer}.{name}" for space in (0, 1)
                                         for layer in (0, 2, 4) for name in ("weight", "bias")}, "cmlm"),
    "dap": ({"rtl_layers": 1, "rtl_direction": "both", "rtl_vocabulary": "target-language",
             "reconstruction_ratio": 0.5},
            {"head.bias", "head.language_embedding.weight"}, "translation_ranking rtl_to_pivot rtl_from_pivot"),
    "frozen_source": ({"towers": "separate", "queue_size": 50}, QUEUE | {"theta"}, "frozen_source"),
    "hictl": ({"temperature": 0.1, "word_samples": 20, "max_positions": 64, "word_query": "unmasked"},
              HEAD | {"hardness.history", "hardness.steps"}, "tlm sentence word"),
    "tlm": ({"max_positions": 64}, HEAD, "tlm"),
}  # fmt: skip
"""Options, the tensors that are saved (of a head of layers, those beside the layers), and the terms, by criterion."""


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_an_objective_keeps_goes_on(data_directory: Path, tmp_path: Path, name: str) -> None:
    """Masks, drawn tokens and words, dropout, queues and histories continue exactly."""
    given, saved, terms = OBJECTIVES[name]
    run = going_on_is_never_stopping(
        data_directory, tmp_path, criterion=name, warmup_steps=1, validate_every=3, **given
    )
    found = open_checkpoint(run / "last").tensors("criterion.safetensors")
    assert {tensor for tensor in found if ".layers." not in tensor} == saved
    assert all(found[tensor].any() for tensor in saved)
    logged = {key for line in (run / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
    assert {f"loss_{term}" for term in terms.split()} <= logged or len(terms.split()) == 1


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
