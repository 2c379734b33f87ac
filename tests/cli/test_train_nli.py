"""Runs of ``xrep-train`` on inference data: alone, beside bitext as in the recipe, and on two ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import Commands
from tests.support.nli_data import nli_rows, write_jsonl
from tests.support.once import made_once
from tests.support.programs import run_on_ranks
from tests.support.runs import SMALL_MODEL, environment, figures, options
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import CRITERION, open_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nli() -> Path:
    def make(folder: Path) -> None:
        write_jsonl(folder / "snli_1.0_train.jsonl", nli_rows(150))
        write_jsonl(folder / "snli_1.0_dev.jsonl", nli_rows(30, seed=1))

    return made_once("snli", make)


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in figures(run) if record["kind"] == kind]


def test_the_recipe_with_nli_beside_bitext(nli: Path, data_directory: Path, cli: Commands) -> None:
    """The objective is L + alpha L_nli; the run makes three steps of the recipe on small data."""
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    texts = [f"parts.moco.task.data={data_directory}", f"parts.nli.task.data={nli}"]
    texts += [f"parts.nli.task.tokenizer={data_directory}"]
    texts += [f"parts.{part}.task.max_length=32" for part in ("moco", "nli")]
    given = "--max-steps=3 --log-every=1 --no-tensorboard --device=cpu --save-dir=run".split()
    run = cli.folder / "run"
    assert cli("train", "--config", "moco_bert/nli_small", *small, *texts, *given).code == 0
    tensors = open_checkpoint(run / "last").tensors(CRITERION)
    assert list(tensors["parts.nli.hidden.0.weight"].shape) == [256, 4 * 32]
    assert list(tensors["parts.moco.source_queue.vectors"].shape) == [1024, 32]
    train = records(run, "train")
    assert [record["step"] for record in train] == [1, 2, 3]
    for record in train:
        assert record["loss"] == pytest.approx(record["loss_moco/infonce"] + record["loss_nli/nli"], rel=1e-4)
    assert train[0]["loss_nli/nli"] == pytest.approx(0.1 * 1.0986, rel=0.05)  # approximately alpha times ln 3 at first
    (valid,) = records(run, "valid")
    assert {"accuracy_de-en", "accuracy_es-en"} <= set(valid)
    assert SentenceEncoder.load(run / "last").encode(["the old man"]).shape == (1, 32)


def test_the_classifier_starts_another_run(nli: Path, cli: Commands) -> None:
    given = {"task": "nli", "criterion": "nli", "validation": "nli", "vocab_size": 70, "max_steps": 1}
    assert cli("train", nli, *options(**given, save_dir="whole")).code == 0
    assert cli("train", nli, *options(**given, save_dir="next", init="whole/last", lr=0.0)).code == 0
    linear, again = (open_checkpoint(cli.folder / run / "last").tensors(CRITERION) for run in ("whole", "next"))
    assert {name: list(x.shape) for name, x in linear.items()} == {"output.weight": [3, 128], "output.bias": [3]}
    assert all(torch.equal(again[name], tensor) for name, tensor in linear.items())


def test_a_tower_without_any_text(nli: Path, cli: Commands) -> None:
    """By default there are two towers, and all text of one language belongs to one of them; the other one stays."""
    given = {"task": "nli", "criterion": "nli", "vocab_size": 70, "towers": "separate", "log_every": 1}
    for steps in (3, 4):
        assert cli("train", nli, *options(**given, max_steps=steps, save_dir="run")).code == 0
    assert [record["step"] for record in records(cli.folder / "run", "train")] == [1, 2, 3, 4]


def test_two_ranks_with_towers_of_their_own(nli: Path, tmp_path: Path) -> None:
    """One of the towers gets no sentence at all."""
    given = {"task": "nli", "criterion": "nli_triplet", "form": "triplets", "validation": "nli", "vocab_size": 70}
    given |= {"towers": "separate", "max_steps": 4, "log_every": 1, "micro_batch": 7, "save_dir": tmp_path / "run"}
    done = run_on_ranks(2, "xrep_cli.train", nli, *options(**given), environment=environment(threads=1))
    assert done.returncode == 0 and "2 ranks" in done.stderr, done.stderr
    assert done.stdout.count("tokenising") == 1
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [1, 2, 3, 4]
