"""Runs of ``xrep-train`` on monolingual text: mlm on one and two ranks and together with tlm, and QuickThought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import write_lines
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.once import made_once
from tests.support.programs import run_on_ranks
from tests.support.runs import SMALL_MODEL, contents, environment, figures, going_on_is_never_stopping, options
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import CRITERION, open_checkpoint

pytestmark = pytest.mark.slow
SMALL = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
SMALL += ["--log-every=1", "--no-tensorboard", "--device=cpu"]


@pytest.fixture(scope="module")
def raw() -> Path:
    """Documents whose sentences share a subject and a verb."""

    def make(folder: Path) -> None:
        for language, side in (("de", 0), ("en", 1)):
            some = sorted(sentence_pairs(700), key=lambda pair: pair[side])
            lines = [pair[side] + "\n" * (n % 10 == 9) for n, pair in enumerate(some)]
            write_lines(folder / f"valid.{language}", lines[:60])
            write_lines(folder / f"train.{language}", lines[60:])

    return made_once("monolingual", make)


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in figures(run) if record["kind"] == kind]


def test_mlm_goes_on_exactly(raw: Path, tmp_path: Path) -> None:
    given = {"task": "monolingual", "criterion": "mlm", "vocab_size": 120, "save_every": 4, "validate_every": 4}
    run = going_on_is_never_stopping(raw, tmp_path, stop=4, steps=8, **given)
    names = set(open_checkpoint(run / "last").tensors(CRITERION))
    assert {"language.heads.shared.dense.weight", "language.heads.shared.bias"} < names
    valid = records(run, "valid")[-1]
    assert {"loss", "accuracy", "perplexity"} <= set(valid) and 0 < valid["loss"] < 6
    assert SentenceEncoder.load(run / "best").encode(["the old man"]).shape == (1, 32)
    assert "tokenizer" in {name.split("/")[0] for name in contents(run / "best")}


@pytest.mark.nightly
def test_two_ranks_and_then_one(raw: Path, data_directory: Path, cli: Commands) -> None:
    """Whole words are masked, neighbours are contrasted with all others of both ranks, and rank 0 validates alone."""
    of_text = f"name: monolingual, data: {raw}, tokenizer: {data_directory}, max_length: 32, batch_size: 15"
    (cli.folder / "parts.yaml").write_text(f"""
parts:
  - name: mlm
    task: {{{of_text}}}
    criterion: {{name: mlm, whole_word: true}}
  - name: quick_thought
    task: {{{of_text}, units: adjacent}}
    criterion: translation_ranking
mixing: weight
lr_scheduler: constant
""")
    line = ["--config", cli.folder / "parts.yaml", *SMALL, "--save-dir", cli.folder / "run"]
    together = [*line, "--max-steps=4", "--validate-every=2"]
    done = run_on_ranks(2, "xrep_cli.train", *together, environment=environment(threads=1))
    assert done.returncode == 0 and "2 ranks" in done.stderr, done.stderr
    assert cli("train", *line, "--max-steps=6").code == 0
    train, valid = (records(cli.folder / "run", kind) for kind in ("train", "valid"))
    assert [record["step"] for record in train] == [1, 2, 3, 4, 5, 6] and len(valid) == 3
    assert all(3 < record["loss_mlm/mlm"] < 6 and record["mlm/perplexity"] > 1 for record in train)
    for record in valid:
        terms = [record[f"loss_{name}"] for name in ("mlm/mlm", "quick_thought/translation_ranking")]
        assert record["loss"] == pytest.approx(sum(terms))


def test_a_token_budget_on_two_ranks_and_another_on_one(raw: Path, data_directory: Path, cli: Commands) -> None:
    """Each part trains for an epoch of unequal steps, and the learning rate still falls steadily."""
    given = {"task": "monolingual", "criterion": "mlm", "tokenizer": data_directory, "sampling_alpha": 1}
    given |= {"warmup_steps": 15, "lr_scheduler": "linear", "log_every": 1, "save_dir": cli.folder}
    line = [raw, *options(**given), "--batch-size=none"]
    together = [*line, "--max-epochs=1", "--max-tokens=300"]
    done = run_on_ranks(2, "xrep_cli.train", *together, environment=environment(threads=1))
    assert done.returncode == 0, done.stderr
    first = records(cli.folder, "train")
    rates = [record["learning_rate"] for record in first]
    assert rates[:15] == sorted(rates[:15]) and rates[15:] == sorted(rates[15:], reverse=True) and rates[-1] < 2e-4
    assert cli("train", *line, "--max-epochs=2", "--max-tokens=700").code == 0
    second = records(cli.folder, "train")[len(first) :]
    summary = json.loads((cli.folder / "summary.json").read_text())
    assert summary["examples"] == 2 * 1280 and summary["steps"] == len(first) + len(second)
    assert len(second) == pytest.approx(len(first) * 600 / 700, rel=0.1)


def test_mlm_beside_tlm(raw: Path, data_directory: Path, cli: Commands) -> None:
    """XLM is trained in this way: on text of each language, and on translations."""
    (cli.folder / "xlm.yaml").write_text(f"""
parts:
  - name: mlm
    task: {{name: monolingual, data: {raw}, tokenizer: {data_directory}, batch_size: 20, max_length: 32}}
    criterion: mlm
  - name: tlm
    task: {{name: bitext, data: {data_directory}, batch_size: 10, max_length: 32}}
    criterion: {{name: tlm, mask_rate: 0.15, position_reset: true, language_embeddings: true}}
mixing: weight
""")
    assert cli("train", "--config", "xlm.yaml", *SMALL, "--max-steps=3", "--save-dir=run").code == 0
    for record in records(cli.folder / "run", "train"):
        assert record["loss"] == pytest.approx(record["loss_mlm/mlm"] + record["loss_tlm/tlm"], rel=1e-4)
    tensors = open_checkpoint(cli.folder / "run" / "last").tensors(CRITERION)
    assert list(tensors["parts.tlm.language_embedding.weight"].shape) == [3, 32]


@pytest.mark.nightly
def test_quick_thought(raw: Path, cli: Commands) -> None:
    """CMLM's baseline (Logeswaran and Lee 2018) finds the neighbour of a sentence in the batch."""
    given = {"task": "monolingual", "units": "adjacent", "vocab_size": 120, "criterion": "translation_ranking"}
    given |= {"temperature": 0.05, "directions": "both", "lr": 1e-2, "max_steps": 60}
    assert cli("train", raw, *options(**given, save_dir="run")).code == 0
    train = records(cli.folder / "run", "train")
    assert train[-1]["accuracy"] > 3 * 100 / 30 and train[-1]["loss"] < 0.8 * train[0]["loss"]
    (valid,) = records(cli.folder / "run", "valid")
    assert set(valid) >= {"loss", "accuracy"}
