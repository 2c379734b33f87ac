"""STS during training: the figures of xrep-eval sts, and the best checkpoint by them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run, options, xrep_train
from xrep.errors import UserError
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.sts import Sts
from xrep.models.dual_encoder import DualEncoder
from xrep.training.run import train
from xrep.validation.sts import StsValidator


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write STS-B in German, English and French, 40 pairs each; scores rise with the number of shared words."""
    folder = tmp_path_factory.mktemp("sts")
    pairs = sentence_pairs(80)
    for language, column in (("de", 0), ("en", 1), ("fr", 0)):
        rows = []
        for n in range(40):
            one, other = pairs[n][column], pairs[79 - n][column]
            score = 5 * len(set(one.split()) & set(other.split())) / len(set(one.split()) | set(other.split()))
            rows.append(f"{one},{other},{score + 0.001 * n:.3f}\n")
        for split in ("dev", "test"):
            (folder / f"stsb-{language}-{split}.csv").write_text("".join(rows[split == "test" :]), encoding="utf-8")
    return folder


def make_task(text, tokenizer) -> SimpleNamespace:
    return SimpleNamespace(tokenizers={"shared": tokenizer}, text=text)


def test_it_measures_the_languages_of_the_text_and_leaves_the_model_as_it_was(sets, text, tokenizer) -> None:
    torch.manual_seed(0)
    sizes = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
    model = DualEncoder(DualEncoder.Config(**sizes, dropout=0.5), text).train()
    model.encoders["source"].eval()
    validate = StsValidator(StsValidator.Config(sts_path=str(sets)), make_task(text, tokenizer))
    found = validate(model, nn.Identity())
    assert set(found) == {"spearman", "spearman-STS-B-de", "spearman-STS-B-en"}
    assert validate(model, nn.Identity()) == found
    assert found["spearman"] == pytest.approx((found["spearman-STS-B-de"] + found["spearman-STS-B-en"]) / 2)
    assert found["spearman-STS-B-de"] > 20, "words in common count even in random vectors"
    assert model.training and not model.encoders["source"].training and model.encoders["target"].training
    config = StsValidator.Config(sts_path=str(sets), sts_languages=["de"], sts_split="test")
    alone = StsValidator(config, make_task(text, tokenizer))(model, nn.Identity())
    assert set(alone) == {"spearman", "spearman-STS-B-de"} and alone["spearman"] != found["spearman-STS-B-de"]


def test_data_in_no_language_of_the_text(sets, text, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "stsb-fr-dev.csv").write_bytes((sets / "stsb-fr-dev.csv").read_bytes())
    for languages, problem in (
        ([], r"languages of the training text \(de, en\); it has fr"),
        (["es"], "no STS data for es"),
    ):
        with pytest.raises(UserError, match=problem):
            StsValidator(
                StsValidator.Config(sts_path=str(tmp_path), sts_languages=languages), make_task(text, tokenizer)
            )


def test_the_best_checkpoint_is_the_one_that_xrep_eval_finds_best(sets, data_directory: Path, tmp_path: Path) -> None:
    given = {
        "validation": "sts",
        "sts_path": sets,
        "max_steps": 6,
        "validate_every": 2,
        "save_every": 2,
        "keep_last": 9,
    }
    finished = xrep_train(data_directory, *options(save_dir=tmp_path / "run", **given))
    assert finished.returncode == 0, finished.stderr
    found = {}
    for step in (2, 4, 6):
        evaluation = Sts(Sts.Config(data=str(sets), langs="de,en", split="dev"))
        evaluation.read()
        figures = evaluation.measure(open_encoder(tmp_path / "run" / f"checkpoint-{step:08d}"))
        found[step] = sum(figures.headline.values()) / 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best"]["metric"] == "spearman"
    assert summary["best"]["value"] == pytest.approx(max(found.values()), abs=1e-3)
    best = int((tmp_path / "run" / "best").resolve().name.split("-")[1])
    assert found[best] == pytest.approx(max(found.values()), abs=1e-3)
    assert len({round(value, 2) for value in found.values()}) > 1


def test_a_folder_without_data_is_refused_before_training(data_directory: Path, tmp_path: Path) -> None:
    run = compose_run(data_directory, tmp_path / "run", validation="sts", sts_path=tmp_path, max_steps=1)
    with pytest.raises(UserError, match="no STS data set with a dev split in it"):
        train(run)
    assert not (tmp_path / "run").exists()
