"""BLEU of generations during training, against sentences translated one by one and the text of the files."""

import math
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU

from tests.support.corpus import sentence_pairs, spanish_pairs
from tests.support.planning import loss_of, sizes_of
from xrep.config import Part, problems_of
from xrep.criteria.label_smoothed_cross_entropy import LabelSmoothedCrossEntropy
from xrep.criteria.multitask import Multitask
from xrep.data.batch import collate
from xrep.errors import UserError
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.models.translation import Translation
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.translation import TranslationTask
from xrep.validation.loss import LossValidator
from xrep.validation.translation import TranslationValidator

SIZES = {
    "layers": 1, "decoder_layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64, "max_positions": 64,
}  # fmt: skip
VALID = {"de": sentence_pairs(720)[600:660], "es": spanish_pairs()[30:]}
"""Held-out pairs of ``data_directory``."""


def make_model(task: Any, **options: Any) -> tuple[Translation, LabelSmoothedCrossEntropy]:
    torch.manual_seed(0)
    model = Translation(Translation.Config(**SIZES, **options), task.text)
    return model, LabelSmoothedCrossEntropy(LabelSmoothedCrossEntropy.Config(), model, task.text)


@pytest.fixture(scope="module")
def task(data_directory: Path) -> TranslationTask:
    return TranslationTask(TranslationTask.Config(data=str(data_directory), max_length=64, max_tokens=400), 1)


@pytest.fixture(scope="module")
def trained(task: TranslationTask) -> tuple[Translation, LabelSmoothedCrossEntropy]:
    """Train until some words are right and some are wrong, while the rate falls to 0."""
    model, criterion = make_model(task, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 70)
    for plan in islice(task.plan(), 70):
        batch = task.make(plan.rows)
        loss = loss_of(criterion, model, batch).terms["translation"].sum / sizes_of(criterion, batch)["translation"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model, criterion


def make_validator(task: Any, **options: Any) -> TranslationValidator:
    return TranslationValidator(TranslationValidator.Config(**options), task)


def one_by_one(
    model: Translation, task: TranslationTask, sentences: list[str], target: str, **options: Any
) -> list[str]:
    tokenizer, found = task.tokenizers["shared"], []
    with torch.inference_mode():
        for sentence in sentences:
            ids = [np.array(tokenizer.encode([sentence])[0])]
            source = collate(ids, task.text.vocabulary("source"), task.text.max_length)
            languages = torch.tensor([task.text.target_languages.index(target)])
            given = {"max_length_a": 1.5, "max_length_b": 10, **options}
            (several,) = search(model, source, languages, DecodingOptions(**given))
            found.append(tokenizer.decode(several[0].tokens))
    return found


def score(hypotheses: list[str], references: list[str]) -> float:
    return BLEU(force=True).corpus_score(hypotheses, [references]).score


@pytest.mark.slow
def test_bleu_of_each_pair(task: TranslationTask, trained: tuple[Translation, LabelSmoothedCrossEntropy]) -> None:
    model, criterion = trained
    validate = make_validator(task, beam=2, max_sentences=10, lenpen=4.0)
    found = validate(model, criterion)
    expected, lines = {}, set[str]()
    for language, pairs in VALID.items():
        foreign, english = zip(*pairs[:10], strict=True)
        hypotheses = one_by_one(model, task, list(foreign), "en", beam=2, length_penalty=4.0)
        expected[f"bleu_{language}-en"] = score(hypotheses, list(english))
        rows = zip(foreign, hypotheses, english, strict=True)
        lines |= {f"  {source} -> {written} (reference: {reference})" for source, written, reference in rows}
    assert 0.3 < min(expected.values()) < max(expected.values()) < 99
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["bleu"] == pytest.approx(sum(expected.values()) / 2)
    assert validate.metric == "bleu" and validate.maximize
    assert len(validate.examples) == 4 and {*validate.examples} <= lines
    (advice,) = validate.advice(3.21)
    assert advice.startswith("warning: BLEU 3.2 on") and "--no-repeat-ngram-size 3" in advice
    assert validate.advice(15.0) == []
    assert list(found)[:5] == ["loss", "accuracy", "nll", "perplexity", "bleu"] and len(found) == 7
    more = make_validator(task, beam=2, max_sentences=15, lenpen=4.0)
    assert more(model, criterion)["bleu_de-en"] != found["bleu_de-en"]

    # The losses are those of the whole split.
    validate = make_validator(task, metric="loss", max_sentences=0)
    assert validate.metric == "loss" and not validate.maximize
    losses = validate(model, criterion)
    assert losses == {name: found[name] for name in ("loss", "nll", "perplexity", "accuracy")}
    alone = LossValidator(LossValidator.Config(), task)(model, criterion)
    assert losses == pytest.approx(alone, rel=1e-5)
    assert losses["perplexity"] == pytest.approx(math.exp(losses["nll"]), rel=1e-4)


@pytest.mark.slow
def test_of_several_parts(data_directory: Path) -> None:
    given = {"data": str(data_directory), "max_length": 64}
    configs = {"out": TranslationTask.Config(**given, direction="reverse"), "in": TranslationTask.Config(**given)}
    parts = [Part(name, TranslationTask, config, 1.0, 1.0) for name, config in configs.items()]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    model, _ = make_model(task)
    smoothing = {"out": 0.0, "in": 0.3}
    criteria = [
        Part(name, LabelSmoothedCrossEntropy, LabelSmoothedCrossEntropy.Config(label_smoothing=x), weight, 1.0)
        for (name, x), weight in zip(smoothing.items(), (3.0, 0.5), strict=True)
    ]
    criterion = Multitask(Multitask.Config(parts=criteria, mixing="weight"), model, task.text)
    found = make_validator(task, max_sentences=5, beam=1)(model, criterion)
    names = [f"out/bleu_{x}" for x in ("en-de", "en-es")] + [f"in/bleu_{x}" for x in ("de-en", "es-en")]
    assert sorted(name for name in found if "bleu_" in name) == sorted(names)
    assert found["bleu"] == pytest.approx(np.mean([found[name] for name in names]))
    # The loss is that of training: each part has its weight.
    losses = {part: found[f"loss_{part}/translation"] for part in smoothing}
    assert found["loss"] == pytest.approx(losses["out"] + losses["in"])
    assert losses["out"] == pytest.approx(3 * found["out/nll"]) and abs(losses["in"] - 0.5 * found["in/nll"]) > 1e-4
    assert found["out/perplexity"] == pytest.approx(math.exp(found["out/nll"]))
    spanish = one_by_one(model, task.parts["out"], [english for _, english in VALID["es"][:5]], "es", beam=1)
    assert found["out/bleu_en-es"] == pytest.approx(score(spanish, [es for es, _ in VALID["es"][:5]]))
    assert task.text.target_languages == ["de", "en", "es"]  # languages are numbered as in all parts


def test_nothing_to_measure() -> None:
    with pytest.raises(UserError, match="there are no translations to validate on; choose another `validation`"):
        make_validator(SimpleNamespace(parts={"text": SimpleNamespace()}))
    (problem,) = problems_of(TranslationValidator.Config(max_sentences=0))
    assert problem.startswith("max_sentences must be at least 1 with")
    assert problems_of(TranslationValidator.Config(max_sentences=0, metric="loss")) == []
