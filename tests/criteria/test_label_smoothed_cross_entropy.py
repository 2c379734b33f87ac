"""The translation loss against its formula in float64, token by token; and models that do not fit a part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.criteria.test_batches import NoWaiting
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from tests.support.runs import SMALL_MODEL, options
from xrep.config import compose
from xrep.criteria.label_smoothed_cross_entropy import LabelSmoothedCrossEntropy
from xrep.data.batching import PairBatch, TextSpec
from xrep.errors import UserError
from xrep.kernels.paths import use_path
from xrep.models.model import SentenceModel
from xrep.models.translation import Translation
from xrep.registry import CRITERIA
from xrep.training.run import train
from xrep_cli.options import parse
from xrep_cli.train import main

SMALL = {"layers": 1, "decoder_layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}


def make_model(text: TextSpec, dropout: float = 0.0, **given) -> Translation:
    torch.manual_seed(0)
    rates = {"dropout": dropout, "attention_dropout": dropout}
    model = Translation(Translation.Config(**{**SMALL, **rates, **given}), text).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def make(model: Translation, text: TextSpec, **given) -> LabelSmoothedCrossEntropy:
    return LabelSmoothedCrossEntropy(LabelSmoothedCrossEntropy.Config(**given), model, text)


@pytest.fixture
def batch(make_batch) -> PairBatch:
    """Return nine pairs of very different lengths."""
    pairs = sentence_pairs(9)
    return make_batch(
        [(german, f"{english} {english}" if n % 3 else "the") for n, (german, english) in enumerate(pairs)]
    )


def by_formula(model: Translation, batch: PairBatch, places: list[int], smoothing: float) -> tuple[Tensor, Tensor, int]:
    """Return the sums of the loss and of -log p(token), and how many tokens have the largest logit, token by token."""
    total, nll, right = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for row, place in enumerate(places):
        one = batch.rows(row, row + 1)
        found = model.predict(one.source, one.target, torch.tensor([place]))
        expected = one.target.tokens[0, 1 : int(one.target.lengths[0])]
        assert found.labels.tolist() == expected.tolist()
        for vector, token in zip(found.vectors, expected.tolist(), strict=True):
            logits = found.matrix @ vector + (0 if found.bias is None else found.bias[0])
            log_p = logits - logits.exp().sum().log()
            wanted = torch.full_like(log_p, smoothing / len(log_p))
            wanted[token] += 1 - smoothing
            total = total - (wanted * log_p).sum()
            nll = nll - log_p[token]
            right += int(logits.argmax()) == token
    return total, nll, right


def gradients(total: Tensor, model: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("path", ["auto", "reference"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("semantic_bias", [False, True])
def test_the_formula(text, batch, path: str, smoothing: float, semantic_bias: bool) -> None:
    model = make_model(text, semantic_bias=semantic_bias)
    criterion = make(model, text, label_smoothing=smoothing)
    total, nll, right = by_formula(model, batch, [0] * 9, smoothing)
    with use_path(path):
        loss = loss_of(criterion, model, batch)
        found = gradients(loss.terms["translation"].sum, model)
    tokens = sizes_of(criterion, batch)["translation"]
    assert tokens == int((batch.target.lengths - 1).sum())
    torch.testing.assert_close(loss.terms["translation"].sum, total)
    expected = {"nll": nll.item() / tokens, "accuracy": 100 * right / tokens}
    expected["perplexity"] = np.exp(expected["nll"])
    assert {name: float(metric) for name, metric in loss.metrics.items()} == pytest.approx(expected)
    assert loss.rows == dict.fromkeys(expected, tokens)
    for name, gradient in gradients(total, model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-9, msg=name)


def test_the_smoothing_of_fairseq(text, batch) -> None:
    """(1 - ε' - ε'/(V - 1)) nll + ε'/(V - 1) Σ over all words of -log p, with ε' = ε (V - 1)/V."""
    model, epsilon = make_model(text), 0.1
    loss = loss_of(make(model, text), model, batch)  # 0.1 is the default
    found = model.predict(batch.source, batch.target, torch.zeros(9, dtype=torch.int64))
    log_p = (found.vectors @ found.matrix.t()).log_softmax(dim=1)
    words = log_p.size(1)
    theirs = epsilon * (words - 1) / words
    nll, smooth = -log_p.gather(1, found.labels[:, None]).sum(), -log_p.sum()
    each = theirs / (words - 1)
    torch.testing.assert_close(loss.terms["translation"].sum, (1 - theirs - each) * nll + each * smooth)


def test_each_row_has_its_target_language(text, batch) -> None:
    """Batches number all languages, the model numbers only its target languages."""
    spec = TextSpec(vocabularies=text.vocabularies, max_length=48,
                    source_languages=["aa", "de", "zz"], target_languages=["en", "fr"])  # fmt: skip
    model = make_model(spec)
    criterion = make(model, spec)
    places = [0, 1, 1, 0, 0, 1, 0, 1, 1]
    batch.languages = torch.tensor([[4, 2 + place] for place in places])
    assert [spec.languages[i] for i in batch.languages[1].tolist()] == ["zz", "fr"]
    total, *_ = by_formula(model, batch, places, 0.1)
    torch.testing.assert_close(loss_of(criterion, model, batch).terms["translation"].sum, total)
    wrong, *_ = by_formula(model, batch, [1 - place for place in places], 0.1)
    assert not torch.isclose(total, wrong, rtol=1e-4)


def test_a_part_without_rows(text, batch) -> None:
    """Its gradient is 0 and exists for every parameter, because other ranks wait for it."""
    model = make_model(text, semantic_bias=True)
    criterion, empty = make(model, text), batch.rows(0, 0)
    loss = loss_of(criterion, model, empty)
    assert sizes_of(criterion, empty) == {"translation": 0} and loss.terms["translation"].sum.item() == 0
    assert set(loss.rows.values()) == {0} and all(metric.item() == 0 for metric in loss.metrics.values())
    for name, gradient in gradients(loss.terms["translation"].sum, model).items():
        assert not gradient.any(), name
    parts = [batch.rows(0, 4), empty, batch.rows(4, 9)]
    sizes = [sizes_of(criterion, part)["translation"] for part in parts]
    assert sum(sizes) == sizes_of(criterion, batch)["translation"]
    total = sum(loss_of(criterion, model, part).terms["translation"].sum for part in parts)
    torch.testing.assert_close(total, loss_of(criterion, model, batch).terms["translation"].sum)


@pytest.mark.parametrize("semantic_bias", [False, True])
def test_a_step_does_not_wait_for_the_device(text, batch, semantic_bias: bool) -> None:
    model = make_model(text, dropout=0.1, semantic_bias=semantic_bias).float().train()
    criterion = make(model, text)
    one, even = batch.rows(2, 3), batch.rows(1, 3)
    some = [part.to("cpu") for part in (batch, one, even, batch.rows(0, 0))]
    assert not one.target.is_padded
    loss_of(criterion, model, one)  # fast products are tried out once
    with NoWaiting():
        for part in some:
            loss = loss_of(criterion, model, part)
            found = model.predict(part.source, part.target, torch.zeros(len(part), dtype=torch.int64))
            assert sizes_of(criterion, part)["translation"] == len(found.labels)
            loss.terms["translation"].sum.backward()
            assert not any(metric.requires_grad for metric in loss.metrics.values())


def test_half_precision_is_near_to_float32(text, batch) -> None:
    model = make_model(text, semantic_bias=True).float()
    criterion = make(model, text)
    exact = loss_of(criterion, model, batch).terms["translation"].sum
    expected = gradients(exact, model)
    with torch.autocast("cpu", torch.bfloat16):
        half = loss_of(criterion, model, batch).terms["translation"].sum
    assert half.dtype == torch.float32 and half.item() != exact.item()
    assert half.item() == pytest.approx(exact.item(), rel=2e-2)
    for name, gradient in gradients(half, model).items():
        assert gradient.dtype == torch.float32
        slack = 0.1 * float(expected[name].abs().max()) + 0.02
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=slack)


def test_options() -> None:
    for smoothing in (-0.1, 1.0):
        config = LabelSmoothedCrossEntropy.Config(label_smoothing=smoothing)
        assert config.problems() == [f"label_smoothing must lie in [0, 1), not {smoothing}"]
    assert LabelSmoothedCrossEntropy.Config().problems() == []


# -- criteria, validations and models that do not fit -----------------------------------------------------------------

TRANSLATE = ["--task", "translation", "--max-steps", "1", "--device", "cpu", "--no-tensorboard"]
OF_SENTENCES = sorted(name for name in CRITERIA.names() if CRITERIA.load(name).needs is SentenceModel)


def refused(capfd, *line: object) -> str:
    """Return the line of the error that ends a run."""
    assert main(list(map(str, line))) == 2
    (said,) = capfd.readouterr().err.splitlines()
    return said.removeprefix("xrep-train: error: ")


@pytest.mark.parametrize("name", OF_SENTENCES)
def test_a_translation_model_does_not_train_sentence_vectors(data_directory: Path, tmp_path, capfd, name: str) -> None:
    line = refused(capfd, data_directory, *TRANSLATE, "--criterion", name, "--save-dir", tmp_path / "run")
    assert line == (
        f"the criterion {name} needs a sentence encoder, and the model translation is not one; "
        "choose the --model dual_encoder or another --criterion"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["nli", "retrieval", "sts"])
def test_nor_is_it_validated_by_them(data_directory: Path, tmp_path, capfd, name: str) -> None:
    given = ["--criterion", "label_smoothed_cross_entropy", "--validation", name, "--save-dir", tmp_path / "run"]
    given += ["--sts-path", tmp_path] if name == "sts" else []
    assert refused(capfd, data_directory, *TRANSLATE, *given) == (
        f"the validation {name} needs a sentence encoder, and the model translation is not one; "
        "choose the --model dual_encoder or another --validation"
    )


@pytest.mark.parametrize("task", ["bitext", "translation"])
def test_a_sentence_encoder_does_not_translate(data_directory: Path, tmp_path, capfd, task: str) -> None:
    given = options(task=task, criterion="label_smoothed_cross_entropy", model="dual_encoder", max_steps=1)
    assert refused(capfd, data_directory, *given, "--save-dir", tmp_path / "run") == (
        "the criterion label_smoothed_cross_entropy needs a translation model, and the model dual_encoder is not one; "
        "choose the --model translation or another --criterion"
    )


def test_one_of_several_parts_does_not_fit(data_directory: Path, tmp_path) -> None:
    task = {"name": "translation", "data": str(data_directory)}
    criteria = ("label_smoothed_cross_entropy", "dual_moco")
    parts = [{"name": name[:4], "task": task, "criterion": {"name": name}} for name in criteria]
    run = compose([("", {"parts": parts, "checkpoint": {"save_dir": str(tmp_path / "run")}})])
    assert run.values["model"]["name"] == run.values["validation"]["name"] == "translation"
    with pytest.raises(UserError, match="the criterion dual_moco needs a sentence encoder, and the model translation"):
        train(run)


@pytest.mark.parametrize(
    ("given", "model", "validation"),
    [
        ({"task": "translation"}, "translation", "translation"),
        ({"task": "translation", "model": "dual_encoder"}, "dual_encoder", "retrieval"),
        ({"task": "bitext"}, "dual_encoder", "retrieval"),
        ({"task": "bitext", "model": "translation"}, "translation", "translation"),
        ({"task": "bitext", "model": "translation", "validation": "nli"}, "translation", "nli"),
    ],
)
def test_model_and_validation_fit_the_task(given: dict[str, str], model: str, validation: str) -> None:
    """The defaults fit if nothing is chosen."""
    line = [f"--{name}={value}" for name, value in {**given, "criterion": "label_smoothed_cross_entropy"}.items()]
    parsed = parse(line)
    run = compose(parsed.layers, parsed.problems)
    assert (run.values["model"]["name"], run.values["validation"]["name"]) == (model, validation)


def test_a_sentence_encoder_may_train_on_the_task(data_directory: Path, tmp_path, capfd) -> None:
    """Batches have a number of tokens or of pairs."""
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    for criterion, own in (("tlm", []), ("translation_ranking", ["--max-tokens=none", "--batch-size=30"])):
        given = ["--criterion", criterion, "--model", "dual_encoder", "--max-length", "32", *small, *own]
        line = [data_directory, *TRANSLATE, *given, "--max-tokens=700", *own, "--save-dir", tmp_path / criterion]
        assert main(list(map(str, line))) == 0, capfd.readouterr().err
