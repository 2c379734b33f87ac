"""Runs of ``xrep-train`` on monolingual text: mlm on one and two ranks, and together with tlm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.once import made_once
from tests.support.programs import run_on_ranks
from tests.support.runs import SMALL_MODEL, environment, figures, going_on_is_never_stopping, options
from xrep.inference.sentence_encoder import SentenceEncoder

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
    valid = records(run, "valid")[-1]
    assert {"loss", "accuracy", "perplexity"} <= set(valid) and 0 < valid["loss"] < 6
    assert SentenceEncoder.load(run / "best").encode(["the old man"]).shape == (1, 32)


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
    own = f"data: {raw}, tokenizer: {data_directory}, batch_size: 20, max_length: 32"
    (cli.folder / "xlm.yaml").write_text(f"""
parts:
  - {{task: {{name: monolingual, {own}}}, criterion: mlm}}
  - task: {{name: bitext, data: {data_directory}, batch_size: 10, max_length: 32}}
    criterion: {{name: tlm, mask_rate: 0.15}}
""")
    assert cli("train", "--config", "xlm.yaml", *SMALL, "--max-steps=3", "--save-dir=run").code == 0
    for record in records(cli.folder / "run", "train"):
        assert record["loss"] == pytest.approx(record["loss_mlm/mlm"] + record["loss_tlm/tlm"], rel=1e-4)
