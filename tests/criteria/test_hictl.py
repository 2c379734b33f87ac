"""hictl: its history, its sampled words, and text without translations beside bitext."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.criteria.objectives import EVERYTHING, Maker, hictl
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, token_batch
from tests.support.runs import SMALL_MODEL
from xrep.config import flat, read_recipe, runs_of
from xrep.criteria import hictl as module
from xrep.criteria.hictl import BATCHES, HiCTL, PositiveProbability, bag_of_words
from xrep.data.batch import TextSpec
from xrep.models.directory import open_checkpoint
from xrep.training.run import train


def test_p_positive_is_of_the_last_steps() -> None:
    hardness = PositiveProbability(0.9)
    assert float(hardness.exponent()) == 0
    losses = [0.1 + 0.01 * step for step in range(130)]
    for step, loss in enumerate(losses):
        for part in (0.25, 0.75):  # two batches of one step
            hardness.note(torch.tensor(loss * part * 40), int(20 * 2 * part))
        hardness.update()
        last = torch.tensor(losses[max(0, step + 1 - BATCHES) : step + 1]).neg().exp().mean()
        assert float(hardness.p_positive()) == pytest.approx(float(last), rel=1e-5)
    assert float(hardness.exponent()) == pytest.approx(0.9 * float(last), rel=1e-5)
    before = copy.deepcopy(hardness.state_dict())
    hardness.update()
    hardness.note(torch.zeros(()), 0)
    hardness.update()
    assert all(torch.equal(tensor, before[name]) for name, tensor in hardness.state_dict().items()), "of no pairs"


def test_only_training_is_noted(make: Maker) -> None:
    model, criterion, batch = make("hictl")
    for training, steps in ((False, 3), (True, 4)):
        loss = loss_of(criterion.train(training), model, batch)
        criterion.after_step(model)
        assert int(criterion.hardness.steps) == steps
    expected = torch.exp(-loss.terms["sentence"].sum.detach() / 18)
    assert float(criterion.hardness.history[3]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("samples", [20, EVERYTHING])
def test_rows_of_the_table_behind_the_vocabulary_are_not_sampled(text, make, monkeypatch, samples):
    """Some pretrained encoders have a table that is longer than their vocabulary."""
    vocabulary, seen = dataclasses.replace(text.vocabulary("shared"), size=140), []

    def spy(*given: Any, **options: Any) -> Any:
        seen.append(kept(*given, **options))
        return seen[-1]

    kept = module.word_infonce
    monkeypatch.setattr(module, "word_infonce", spy)
    model, criterion = make.build(hictl(word_samples=samples))
    own = HiCTL(criterion.config, model, dataclasses.replace(text, vocabularies={"shared": vocabulary})).double()
    loss_of(own, model, make.batch("pairs"))
    for row in seen.pop().sampled.tolist():
        drawn = {*row} - {-1}
        assert drawn and max(drawn) < 140 and not drawn & {*vocabulary.special_ids}
        assert len(drawn) == 20 or samples == EVERYTHING


def test_bag_of_words_by_hand(text: TextSpec) -> None:
    vocabulary = dataclasses.replace(text.vocabulary("shared"), pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    tokens = torch.tensor([[2, 9, 7, 9, 3, 1, 7, 3], [2, 5, 3, 3, 0, 0, 0, 0]])
    found = bag_of_words(token_batch(tokens, torch.tensor([8, 4])), vocabulary)
    assert [found.words[row][found.bag[row]].tolist() for row in range(2)] == [[7, 9], [5]]
    assert found.together.tokens.equal(tokens)


@pytest.mark.slow
def test_text_without_translations_beside_bitext(data_directory, tmp_path: Path, monkeypatch) -> None:
    """The run has the criteria of the recipe at the paper's scale, with smaller numbers."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    for language, sentences in zip(("de", "en"), zip(*sentence_pairs(300), strict=True), strict=True):
        (tmp_path / f"{language}.txt").write_text("\n".join(sentences), encoding="utf-8")
    recipe = read_recipe("hictl/hictl")
    own = [{"data": str(data_directory)}, {"data": str(tmp_path), "tokenizer": str(data_directory)}]
    for part, task in zip(recipe["parts"], own, strict=True):
        changes = {"task": {"batch_size": 20, "max_length": 24, **task}, "criterion": {"word_samples": 30}}
        recipe |= flat({f"parts.{part}": changes})
    small = {
        "model": {"name": "dual_encoder", **SMALL_MODEL, "max_positions": 96, "projection_size": 12},
        "trainer": {"max_steps": 6}, "logging": {"log_every": 1}, "checkpoint": {"save_dir": str(tmp_path / "run")},
    }  # fmt: skip
    recipe = {key: value for key, value in recipe.items() if not key.startswith("model.")}
    directory = train(runs_of([("", {**recipe, **flat(small)})])[0]).directory
    saved = open_checkpoint(directory / "last").tensors("criterion.safetensors")
    steps = [int(saved[f"parts.{part}.hardness.steps"]) for part in ("parallel", "monolingual")]
    assert sum(steps) == 6 and min(steps) >= 2
    heads = {name.partition(".heads")[0] for name in saved if ".heads." in name}
    assert heads == {"parts.parallel.masked_lm"}, "the model that goes on has one"
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    terms = {name for line in lines for name in line if name.startswith("loss_")}
    of_parts = {"parallel": ("tlm", "sentence", "word"), "monolingual": ("mlm", "sentence", "word")}
    assert terms == {f"loss_{part}/{name}" for part, names in of_parts.items() for name in names}


def test_a_high_temperature_is_warned_of(make: Maker) -> None:
    (warning,) = make("hictl")[1].warnings(None)
    assert "a `temperature` of 1.0" in warning
    for cure in ({"temperature": 0.05}, {"hard_negatives": False}, {"sentence_contrast": False}):
        assert make.build(hictl(**cure))[1].warnings(None) == []
