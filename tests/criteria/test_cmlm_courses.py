"""The shipped recipes of cmlm with a tiny model: the weights that a stage takes over, and pretrained encoders."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of
from tests.training.test_pretrained_towers import pretrained
from xrep.config import compose_course, read_yaml
from xrep.criteria.cmlm import CMLM
from xrep.data.batching import PairBatch, TextSpec, Vocabulary, collate
from xrep.models.directory import open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.text.tokenizer import Tokenizer
from xrep_cli.train import main

__all__ = ["pretrained"]
RECIPES = Path(__file__).parents[2] / "examples" / "cmlm"
TINY = """--layers 1 --hidden-size 16 --heads 2 --feedforward-size 32 --max-positions 32 --precision float32 --lr 0
    --weight-decay 0 --device cpu --no-tensorboard --log-every 1""".split()


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write German and English documents of six sentences."""
    folder = tmp_path_factory.mktemp("documents")
    for split, pairs in (("train", sentence_pairs(240)), ("valid", sentence_pairs(300)[240:])):
        for side, language in enumerate(("de", "en")):
            lines = [pair[side] + "\n" * (1 + (number % 6 == 5)) for number, pair in enumerate(pairs)]
            (folder / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
    return folder


def options(recipe: str, documents: Path, pairs: Path, save_dir: Path) -> list[str]:
    parts = {
        "cmlm": {"data": documents, "tokenizer": pairs, "batch_size": 12, "max_length": 32},
        "br": {"data": pairs, "batch_size": 10, "max_length": 32},
    }
    given = {part: given for part, given in parts.items() if part == "cmlm" or "br" in recipe}
    tasks = [f"parts.{part}.task.{key}={value}" for part, own in given.items() for key, value in own.items()]
    return ["--config", str(RECIPES / recipe), "--save-dir", str(save_dir), *TINY, *tasks]


def criterion_of(directory: Path) -> dict[str, torch.Tensor]:
    return open_checkpoint(directory).tensors("criterion.safetensors")


def test_both_from_the_start(documents: Path, data_directory: Path, tmp_path: Path) -> None:
    line = options("cmlm+br.yaml", documents, data_directory, tmp_path / "run")
    assert main([*line, "--max-steps", "2", "--micro-batch", "4"]) == 0
    heads = {name.split(".")[2] for name in criterion_of(tmp_path / "run" / "last")}
    assert heads == {"language", "spaces"}


def test_the_projections_go_on_in_the_next_stage(documents: Path, data_directory: Path, tmp_path: Path, capfd) -> None:
    steps = [f"stages.{stage}.trainer.max_steps={count}" for stage, count in (("cmlm", 1), ("cmlm_br", 2))]
    line = options("cmlm-cmlm+br.yaml", documents, data_directory, tmp_path / "run")
    assert main([*line, *steps]) == 0
    first, second = (criterion_of(tmp_path / "run" / stage / "last") for stage in ("cmlm", "cmlm_br"))
    assert len(first) == 14 * 6 + 5 and first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    models = [open_checkpoint(tmp_path / "run" / stage / "last").tensors() for stage in ("cmlm", "cmlm_br")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert f"init: {len(first)} of {len(first)} criterion tensors" in capfd.readouterr().err


def test_retrieval_alone_comes_after(documents: Path, data_directory: Path, tmp_path: Path) -> None:
    steps = [f"stages.{stage}.trainer.max_steps=1" for stage in ("cmlm", "br")]
    assert main([*options("cmlm-br.yaml", documents, data_directory, tmp_path / "run"), *steps]) == 0
    assert "criterion.safetensors" not in open_checkpoint(tmp_path / "run" / "best").manifest["files"]


def test_the_courses_have_the_values_of_section_4() -> None:
    courses = {name: compose_course([("", read_yaml(RECIPES / f"{name}.yaml"))]) for name in
               ("cmlm+br", "cmlm-br", "cmlm-cmlm+br", "english")}  # fmt: skip
    steps = {name: [run.configs["trainer"].max_steps for run in runs] for name, runs in courses.items()}
    m = 1_000_000
    assert steps == {"cmlm+br": [2 * m], "cmlm-br": [1.5 * m, m], "cmlm-cmlm+br": [1.5 * m, m], "english": [m]}
    for run in (run for runs in courses.values() for run in runs):
        optimizer, schedule = run.configs["optimizer"], run.configs["lr_scheduler"]
        assert (run.values["optimizer"]["name"], optimizer.lr, optimizer.betas) == ("lamb", 1e-3, [0.9, 0.999])
        assert (run.values["lr_scheduler"]["name"], schedule.warmup_steps) == ("linear", 10_000)
        parts = run.values.get("parts", [{**run.values, "name": "cmlm", "weight": 1.0}])
        for part in parts:
            criterion, task = part["criterion"], part["task"]
            assert (task["batch_size"], task["max_length"]) == (2048 // 8, 256)
            if part["name"] == "cmlm":
                assert (criterion["projections"], criterion["mask_rate"]) == (15, 80 / 256)
                assert (part["weight"], task["units"], task["swap_order"]) == (1.0, "adjacent", True)
            else:
                assert (criterion["margin"], criterion["directions"]) == (0.3, "both")
                assert part["weight"] == (0.2 if len(parts) == 2 else 1.0)


def test_a_given_encoder(pretrained: dict[str, Path]) -> None:  # noqa: F811
    """The encoder starts as f-mBERT does: with given weights and vocabulary, and with a new head if none is given."""
    path, tokenizer = str(pretrained["de"]), Tokenizer.load(pretrained["de"])
    text = TextSpec(vocabularies={"shared": Vocabulary.of(tokenizer)}, max_length=40, source_languages=["de"])
    model = DualEncoder(DualEncoder.Config(towers="shared", encoder=path), text)
    cmlm = CMLM(CMLM.Config(), model, text)
    (note,) = cmlm.warnings(None)
    assert "has no masked language head" in note
    sentences = [np.array(ids) for ids in tokenizer.encode([german for german, _ in sentence_pairs(7)])]
    one, other = (collate(some, text.vocabulary("shared"), 40) for some in (sentences[:-1], sentences[1:]))
    batch = PairBatch(one, other, torch.zeros(6, 2).long(), torch.arange(6), torch.zeros(6, 2).long())
    loss = loss_of(cmlm, model, batch)
    loss.terms["cmlm"].sum.backward()
    assert loss.terms["cmlm"].sum.isfinite() and model.encoders["shared"].token_embedding.weight.grad.any()
    short = dataclasses.replace(text, max_length=30)
    CMLM(CMLM.Config(vector_embedding="positioned", projections=10), model, short)
