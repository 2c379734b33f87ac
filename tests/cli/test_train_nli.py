"""Runs of xrep-train on inference data: alone, beside bitext as in the recipe, and on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.nli_data import nli_rows, write_columns, write_jsonl
from tests.support.programs import run_on_ranks
from tests.support.runs import SMALL_MODEL, environment, options
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import CRITERION, open_checkpoint
from xrep_cli.train import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nli")
    write_jsonl(folder / "snli_1.0_train.jsonl", nli_rows(150))
    write_jsonl(folder / "snli_1.0_dev.jsonl", nli_rows(30, seed=1))
    return folder


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_the_recipe_with_nli_beside_bitext(nli: Path, data_directory: Path, tmp_path: Path) -> None:
    """The objective is L + alpha L_nli; the run makes three steps of the recipe on small data."""
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    texts = [f"parts.moco.task.data={data_directory}", f"parts.nli.task.data={nli}"]
    texts += [f"parts.nli.task.tokenizer={data_directory}"]
    texts += [f"parts.{part}.task.max_length=32" for part in ("moco", "nli")]
    given = ["--max-steps=3", "--log-every=1", "--no-tensorboard", "--device=cpu", f"--save-dir={tmp_path / 'run'}"]
    recipe = ROOT / "examples" / "moco_bert" / "nli_small.yaml"
    assert main(["--config", str(recipe), *small, *texts, *given]) == 0
    tensors = open_checkpoint(tmp_path / "run" / "last").tensors(CRITERION)
    assert list(tensors["parts.nli.hidden.0.weight"].shape) == [256, 4 * 32]
    assert list(tensors["parts.moco.source_queue.vectors"].shape) == [1024, 32]
    train = records(tmp_path / "run", "train")
    assert [record["step"] for record in train] == [1, 2, 3]
    for record in train:
        assert record["loss"] == pytest.approx(record["loss_moco/infonce"] + record["loss_nli/nli"], rel=1e-4)
    assert train[0]["loss_nli/nli"] == pytest.approx(0.1 * 1.0986, rel=0.05)  # approximately alpha times ln 3 at first
    (valid,) = records(tmp_path / "run", "valid")
    assert {"accuracy_de-en", "accuracy_es-en"} <= set(valid)
    assert SentenceEncoder.load(tmp_path / "run" / "last").encode(["the old man"]).shape == (1, 32)


@pytest.mark.slow
def test_the_classifier_learns_and_starts_another_run(nli: Path, tmp_path: Path) -> None:
    given = {"task": "nli", "criterion": "nli", "validation": "nli", "vocab_size": 70, "lr": 1e-2}
    whole = tmp_path / "whole"
    assert main([str(nli), *options(**given, save_dir=whole, max_steps=60)]) == 0
    losses = [record["loss"] for record in records(whole, "train")]
    assert losses[0] > 1.05 > 1.0 > losses[-1]  # ln 3 is the loss of guessing
    (valid,) = records(whole, "valid")
    assert 0 <= valid["accuracy"] <= 100
    linear = open_checkpoint(whole / "last").tensors(CRITERION)
    assert {name: list(tensor.shape) for name, tensor in linear.items()} == {
        "output.weight": [3, 128], "output.bias": [3]
    }  # fmt: skip
    # The next stage also starts from the classifier.
    given |= {"init": whole / "last", "max_steps": 1, "lr": 0.0}
    assert main([str(nli), *options(**given, save_dir=tmp_path / "next")]) == 0
    again = open_checkpoint(tmp_path / "next" / "last").tensors(CRITERION)
    assert all(torch.equal(again[name], tensor) for name, tensor in linear.items())


def test_a_tower_without_any_text(nli: Path, tmp_path: Path) -> None:
    """By default there are two towers, and all text of one language belongs to one of them; the other one stays."""
    given = {"task": "nli", "criterion": "nli", "vocab_size": 70, "max_steps": 3, "towers": "separate", "log_every": 1}
    assert main([str(nli), *options(**given, save_dir=tmp_path / "run")]) == 0
    assert main([str(nli), *options(**{**given, "max_steps": 4}, save_dir=tmp_path / "run")]) == 0
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_two_ranks_with_towers_of_their_own(nli: Path, tmp_path: Path) -> None:
    """One of the towers gets no sentence at all."""
    given = {"task": "nli", "criterion": "nli_triplet", "form": "triplets", "validation": "nli", "vocab_size": 70}
    given |= {"towers": "separate", "max_steps": 4, "log_every": 1, "micro_batch": 7, "save_dir": tmp_path / "run"}
    done = run_on_ranks(2, "xrep_cli.train", nli, *options(**given), environment=environment(threads=1))
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stderr and "tokenising" in done.stdout
    assert done.stdout.count("tokenising") == 1
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [1, 2, 3, 4]


def test_refusals(nli: Path, tmp_path: Path, capfd) -> None:
    given = {"task": "nli", "vocab_size": 60, "validation": "nli"}
    assert main([str(nli), *options(**given, criterion="nli_triplet", save_dir=tmp_path / "run")]) == 2
    assert "the task gives labelled pairs; set --task to nli and --form to triplets" in capfd.readouterr().err
    write_columns(tmp_path / "german" / "train-de.tsv", nli_rows(60, "de"))
    line = options(**given, criterion="nli", cross_lingual=None, save_dir=tmp_path / "other")
    assert main([str(tmp_path / "german"), *line]) == 2
    assert "train-de.tsv: has no translation beside it; leave out --cross-lingual" in capfd.readouterr().err
