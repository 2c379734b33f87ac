"""cmlm: the gap, its shipped recipes with a tiny model, and pretrained encoders."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.criteria.objectives import Maker
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from xrep.models.directory import open_checkpoint
from xrep_cli.train import main

TINY = """--layers 1 --hidden-size 16 --heads 2 --feedforward-size 32 --max-positions 32 --precision float32 --lr 0
    --weight-decay 0 --device cpu --no-tensorboard --log-every 1""".split()


def test_the_gap_is_the_loss_with_other_sentences_minus_the_loss(make: Maker) -> None:
    model, criterion, batch = make("cmlm")
    assert "gap" not in loss_of(criterion, model, batch).metrics
    criterion.eval()
    moved = np.roll(np.arange(len(batch)), len(batch) // 2)
    other = dataclasses.replace(batch, sides={**batch.sides, "source": batch.source.select(moved)})
    given, swapped = (loss_of(criterion, model, each) for each in (batch, other))
    tokens = sizes_of(criterion, batch)["cmlm"]
    expected = (swapped.terms["cmlm"].sum - given.terms["cmlm"].sum) / tokens
    torch.testing.assert_close(given.metrics["gap"], expected, rtol=1e-9, atol=1e-12)
    assert abs(expected) > 1e-5 and given.rows["gap"] == tokens
    assert loss_of(criterion, model, batch.rows(0, 1)).rows["gap"] == 0, "one row has no other sentence"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write German and English documents of six sentences."""
    folder = tmp_path_factory.mktemp("documents")
    for split, pairs in (("train", sentence_pairs(240)), ("valid", sentence_pairs(300)[240:])):
        for side, language in enumerate(("de", "en")):
            lines = [pair[side] + "\n" * (1 + (number % 6 == 5)) for number, pair in enumerate(pairs)]
            (folder / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_projections_go_on_in_the_next_stage(documents: Path, data_directory: Path, tmp_path: Path, capfd) -> None:
    parts = {"cmlm": {"data": documents, "tokenizer": data_directory, "batch_size": 12, "max_length": 32},
             "br": {"data": data_directory, "batch_size": 10, "max_length": 32}}  # fmt: skip
    tasks = [f"parts.{part}.task.{key}={value}" for part, own in parts.items() for key, value in own.items()]
    steps = [f"stages.{stage}.trainer.max_steps={count}" for stage, count in (("cmlm", 1), ("cmlm_br", 2))]
    line = ["--config", "cmlm/cmlm-cmlm+br", "--save-dir", str(tmp_path / "run"), *TINY]
    assert main([*line, *tasks, *steps]) == 0
    checkpoints = [open_checkpoint(tmp_path / "run" / stage / "last") for stage in ("cmlm", "cmlm_br")]
    first, second = (checkpoint.tensors("criterion.safetensors") for checkpoint in checkpoints)
    assert len(first) == 14 * 6 + 5 and first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    models = [checkpoint.tensors() for checkpoint in checkpoints]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert f"init: {len(first)} of {len(first)} criterion tensors" in capfd.readouterr().err
