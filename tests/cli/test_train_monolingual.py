"""Runs of xrep-train on monolingual text: mlm on one and two ranks and together with tlm, and QuickThought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.programs import run_on_ranks
from tests.support.runs import SMALL_MODEL, contents, environment, options
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import CRITERION, MODEL, open_checkpoint
from xrep_cli.train import main

STEADY = {"task": "monolingual", "criterion": "mlm", "lr_scheduler": "constant", "save_every": 4, "log_every": 1}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return documents whose sentences share a subject and a verb."""
    folder = tmp_path_factory.mktemp("text")
    for language, side in (("de", 0), ("en", 1)):
        some = sorted(sentence_pairs(700), key=lambda pair: pair[side])
        lines = [f"{pair[side]}\n" + "\n" * (n % 10 == 9) for n, pair in enumerate(some)]
        (folder / f"valid.{language}").write_text("".join(lines[:60]), encoding="utf-8")
        (folder / f"train.{language}").write_text("".join(lines[60:]), encoding="utf-8")
    return folder


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_mlm_goes_on_exactly(raw: Path, tmp_path: Path) -> None:
    given = {**STEADY, "vocab_size": 120}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert main([str(raw), *options(**given, save_dir=whole, max_steps=8)]) == 0
    for steps in (4, 8):
        assert main([str(raw), *options(**given, save_dir=halves, max_steps=steps)]) == 0
    for file in (MODEL, CRITERION):
        one, other = (open_checkpoint(run / "last").tensors(file) for run in (whole, halves))
        assert all(torch.equal(one[name], other[name]) for name in one) and set(one) == set(other)
    assert {"language.heads.shared.dense.weight", "language.heads.shared.bias"} < set(one)
    (valid,) = records(whole, "valid")
    assert {"loss", "accuracy", "perplexity"} <= set(valid) and 0 < valid["loss"] < 6
    assert SentenceEncoder.load(whole / "best").encode(["the old man"]).shape == (1, 32)
    assert "tokenizer" in {name.split("/")[0] for name in contents(whole / "best")}


@pytest.mark.slow
def test_two_ranks_and_then_one(raw: Path, data_directory: Path, tmp_path: Path) -> None:
    """Whole words are masked, neighbours are contrasted with all others of both ranks, and rank 0 validates alone."""
    recipe = tmp_path / "parts.yaml"
    of_text = f"name: monolingual, data: {raw}, tokenizer: {data_directory}, max_length: 32, batch_size: 15"
    recipe.write_text(f"""
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
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    line = ["--config", str(recipe), *small, "--log-every=1", "--no-tensorboard"]
    line += ["--device=cpu", f"--save-dir={tmp_path / 'run'}"]
    together = [*line, "--max-steps=4", "--validate-every=2"]
    done = run_on_ranks(2, "xrep_cli.train", *together, environment=environment(threads=1))
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stderr
    assert main([*line, "--max-steps=6"]) == 0
    train, valid = (records(tmp_path / "run", kind) for kind in ("train", "valid"))
    assert [record["step"] for record in train] == [1, 2, 3, 4, 5, 6] and len(valid) == 3
    assert all(3 < record["loss_mlm/mlm"] < 6 and record["mlm/perplexity"] > 1 for record in train)
    for record in valid:
        terms = [record[f"loss_{name}"] for name in ("mlm/mlm", "quick_thought/translation_ranking")]
        assert record["loss"] == pytest.approx(sum(terms))


@pytest.mark.slow
def test_a_token_budget_on_two_ranks_and_another_on_one(raw: Path, data_directory: Path, tmp_path: Path) -> None:
    """Each part trains for an epoch of unequal steps, and the learning rate still falls steadily."""
    given = {
        "task": "monolingual",
        "criterion": "mlm",
        "tokenizer": data_directory,
        "sampling_alpha": 1,
        "log_every": 1,
    }
    given |= {"warmup_steps": 15, "lr_scheduler": "linear"}
    line = [str(raw), *options(**given, save_dir=tmp_path), "--batch-size=none"]
    together = [*line, "--max-epochs=1", "--max-tokens=300"]
    done = run_on_ranks(2, "xrep_cli.train", *together, environment=environment(threads=1))
    assert done.returncode == 0, done.stderr
    first = records(tmp_path, "train")
    rates = [record["learning_rate"] for record in first]
    assert rates[:15] == sorted(rates[:15]) and rates[15:] == sorted(rates[15:], reverse=True) and rates[-1] < 2e-4
    assert main([*line, "--max-epochs=2", "--max-tokens=700"]) == 0
    second = records(tmp_path, "train")[len(first) :]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["examples"] == 2 * 1280 and summary["steps"] == len(first) + len(second)
    assert len(second) == pytest.approx(len(first) * 600 / 700, rel=0.1)


def test_mlm_beside_tlm(raw: Path, data_directory: Path, tmp_path: Path) -> None:
    """XLM is trained in this way: on text of each language, and on translations."""
    recipe = tmp_path / "xlm.yaml"
    recipe.write_text(f"""
parts:
  - name: mlm
    task: {{name: monolingual, data: {raw}, tokenizer: {data_directory}, batch_size: 20, max_length: 32}}
    criterion: mlm
  - name: tlm
    task: {{name: bitext, data: {data_directory}, batch_size: 10, max_length: 32}}
    criterion: {{name: tlm, mask_rate: 0.15, position_reset: true, language_embeddings: true}}
mixing: weight
""")
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    given = ["--max-steps=3", "--log-every=1", "--no-tensorboard", "--device=cpu", f"--save-dir={tmp_path / 'run'}"]
    assert main(["--config", str(recipe), *small, *given]) == 0
    for record in records(tmp_path / "run", "train"):
        assert record["loss"] == pytest.approx(record["loss_mlm/mlm"] + record["loss_tlm/tlm"], rel=1e-4)
    tensors = open_checkpoint(tmp_path / "run" / "last").tensors(CRITERION)
    assert list(tensors["parts.tlm.language_embedding.weight"].shape) == [3, 32]


@pytest.mark.slow
def test_quick_thought(raw: Path, tmp_path: Path) -> None:
    """CMLM's baseline (Logeswaran and Lee 2018) finds the neighbour of a sentence in the batch."""
    given = {"task": "monolingual", "units": "adjacent", "vocab_size": 120, "criterion": "translation_ranking"}
    given |= {"temperature": 0.05, "directions": "both", "lr": 1e-2, "max_steps": 60}
    assert main([str(raw), *options(**given, save_dir=tmp_path / "run")]) == 0
    train = records(tmp_path / "run", "train")
    assert train[-1]["accuracy"] > 3 * 100 / 30 and train[-1]["loss"] < 0.8 * train[0]["loss"]
    (valid,) = records(tmp_path / "run", "valid")
    assert set(valid) >= {"loss", "accuracy"}


@pytest.mark.parametrize("criterion", ["tlm", "translation_ranking", "dual_moco", "nli", "nli_triplet"])
def test_single_sentences_are_not_what_is_read(criterion: str, raw: Path, tmp_path: Path, capfd) -> None:
    run = tmp_path / "run"
    given = {"task": "monolingual", "units": "sentences", "criterion": criterion, "vocab_size": 120, "save_dir": run}
    assert main([str(raw), *options(**given)]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    pairs = "translations or neighbouring sentences or reordered sentences"
    kinds = {"nli": "labelled pairs", "nli_triplet": "triplets", "tlm": "translations or neighbouring sentences"}
    read = kinds.get(criterion, pairs)
    assert error.startswith(
        f"xrep-train: error: the criterion reads {read}, and the task gives single sentences; set --task to "
    )
    assert not run.exists()


@pytest.mark.parametrize("criterion", ["dap", "frozen_source"])
def test_neighbouring_sentences_are_no_translations(criterion: str, raw: Path, tmp_path: Path, capfd) -> None:
    """Although their batches look alike. Vectors of the first sentence of each pair would be of no use either."""
    run = tmp_path / "run"
    given = {"task": "monolingual", "units": "adjacent", "criterion": criterion, "vocab_size": 120, "save_dir": run}
    given |= {"dap": {"rtl_layers": 1}, "frozen_source": write_teacher(tmp_path)}[criterion]
    assert main([str(raw), *options(**given)]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == (
        "xrep-train: error: the criterion reads translations, and the task gives neighbouring sentences; "
        "set --task to bitext"
    )
    assert not any("Traceback" in line for line in lines) and sum("error" in line for line in lines) == 1
    assert not run.exists()


def write_teacher(folder: Path) -> dict[str, str]:
    """Vectors of German sentences, as options of frozen_source."""
    np.save(folder / "teacher.npy", np.ones((700, SMALL_MODEL["hidden_size"]), dtype=np.float32))
    sentences = "".join(f"{german}\n" for german, _ in sentence_pairs(700))
    (folder / "teacher.txt").write_text(sentences, encoding="utf-8")
    return {"teacher_vectors": str(folder / "teacher.npy"), "teacher_text": str(folder / "teacher.txt")}


def test_translations_have_no_labels(data_directory: Path, tmp_path: Path, capfd) -> None:
    given = {"criterion": "nli", "save_dir": tmp_path / "run"}
    assert main([str(data_directory), *options(**given)]) == 2
    assert "reads labelled pairs, and the task gives translations; set --task to nli" in capfd.readouterr().err
