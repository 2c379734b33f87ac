"""cmlm: the gap, its shipped recipes with a tiny model, and pretrained encoders."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.criteria.objectives import Maker
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of, token_batch
from xrep.config import read_yaml, runs_of
from xrep.config.values import strip
from xrep.criteria.cmlm import CMLM
from xrep.data.batch import TextSpec
from xrep.data.masking import mask_counts
from xrep.models.directory import open_checkpoint
from xrep_cli.train import main

RECIPES = Path(__file__).parents[2] / "examples" / "cmlm"
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


def test_how_many_tokens_are_masked(text: TextSpec) -> None:
    """80 of 256 tokens are masked, as in the paper; with a rate of 1 all but special ones."""
    vocabulary = text.vocabulary("shared")
    tokens = torch.full((1, 256), vocabulary.mask_id + 1)
    batch = token_batch(tokens, torch.tensor([256]))
    assert mask_counts(batch, vocabulary, CMLM.Config().mask_rate).tolist() == [80]
    tokens[0, :9], tokens[0, 9:12] = vocabulary.eos_id, vocabulary.unk_id
    assert mask_counts(batch, vocabulary, 1.0).tolist() == [244]


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
    line = ["--config", str(RECIPES / "cmlm-cmlm+br.yaml"), "--save-dir", str(tmp_path / "run"), *TINY]
    assert main([*line, *tasks, *steps]) == 0
    checkpoints = [open_checkpoint(tmp_path / "run" / stage / "last") for stage in ("cmlm", "cmlm_br")]
    first, second = (checkpoint.tensors("criterion.safetensors") for checkpoint in checkpoints)
    assert len(first) == 14 * 6 + 5 and first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    models = [checkpoint.tensors() for checkpoint in checkpoints]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert f"init: {len(first)} of {len(first)} criterion tensors" in capfd.readouterr().err


def test_the_courses_have_the_values_of_section_4() -> None:
    courses = {name: runs_of([("", read_yaml(RECIPES / f"{name}.yaml"))]) for name in
               ("cmlm+br", "cmlm-br", "cmlm-cmlm+br", "english")}  # fmt: skip
    steps = {name: [run.configs["trainer"].max_steps for run in runs] for name, runs in courses.items()}
    m = 1_000_000
    assert steps == {"cmlm+br": [2 * m], "cmlm-br": [1.5 * m, m], "cmlm-cmlm+br": [1.5 * m, m], "english": [m]}
    for run in (run for runs in courses.values() for run in runs):
        optimizer, schedule = run.configs["optimizer"], run.configs["lr_scheduler"]
        assert (run.values["optimizer.name"], optimizer.lr, optimizer.betas) == ("lamb", 1e-3, [0.9, 0.999])
        assert (run.values["lr_scheduler.name"], schedule.warmup_steps) == ("linear", 10_000)
        for name in run.values.get("parts", ["cmlm"]):
            part = strip(run.values, f"parts.{name}.") or {**run.values, "weight": 1.0}
            assert (part["task.batch_size"], part["task.max_length"]) == (2048 // 8, 256)
            if name == "cmlm":
                assert (part["criterion.projections"], part["criterion.mask_rate"]) == (15, 80 / 256)
                assert (part["weight"], part["task.units"], part["task.swap_order"]) == (1.0, "adjacent", True)
            else:
                assert (part["criterion.margin"], part["criterion.directions"]) == (0.3, "both")
                assert part["weight"] == (0.2 if "parts" in run.values and len(run.values["parts"]) == 2 else 1.0)
