"""Matryoshka losses against plain formulas in float64, and the sums of all criteria that compare vectors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.criteria.test_plans import OWN, SMALL, batch_for
from tests.support.closeness import assert_near
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan
from xrep.config import Part
from xrep.criteria.contrastive import ContrastiveCriterion
from xrep.criteria.multitask import Multitask
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.registry import CRITERIA

TAU, WIDTHS = 0.07, [7, 3]
CONTRASTIVE = [name for name in OWN if issubclass(CRITERIA.load(name), ContrastiveCriterion)]


def make_model(text, **options: Any) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(DualEncoder.Config(**SMALL, dropout=0.0, attention_dropout=0.0, **options), text)


def plain(x: Tensor, y: Tensor) -> Tensor:
    """The loss of finding each y from its x and each x from its y, with the cosine."""
    loss = torch.zeros((), dtype=torch.float64)
    for one, other in ((x, y), (y, x)):
        for i in range(len(one)):
            scores = [one[i] @ other[j] / (one[i].norm() * other[j].norm() * TAU) for j in range(len(other))]
            loss = loss - (scores[i] - torch.stack(scores).logsumexp(0))
    return loss


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("widths", [[7, 3], [15, 8, 2]])
def test_loss_and_gradients_equal_the_plain_sum(text, make_batch, towers: str, widths: list[int]) -> None:
    model, batch = make_model(text, towers=towers), make_batch(sentence_pairs(5))
    exact = copy.deepcopy(model).double()
    x, y = exact.encode(exact.tower("de"), batch.source)[0], exact.encode(exact.tower("en"), batch.target)[0]
    expected = torch.stack([plain(x[:, :width], y[:, :width]) for width in (16, *widths)]).sum()
    expected.backward()
    criterion = TranslationRanking(TranslationRanking.Config(temperature=TAU, matryoshka=widths), model, text)
    loss = loss_of(criterion, model, batch)
    loss.terms["translation_ranking"].sum.backward()
    assert float(loss.terms["translation_ranking"].sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert loss.metrics.keys() == {"accuracy", *(f"accuracy_{width}" for width in widths)}
    for (name, mine), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert_near(mine.grad, theirs.grad, 5e-5, name)


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_every_criterion_adds_its_losses_of_shorter_vectors(text, make_batch, name: str) -> None:
    """The second step has vectors in its queues, and state is changed once a step."""
    pairs = make_batch([(german, english) for german, english in sentence_pairs(9)])
    model = make_model(text, towers="separate" if name == "frozen_source" else "shared")
    kind, small = CRITERIA.load(name), {"queue_size": 12} if name in ("dual_moco", "frozen_source") else {}
    small |= {"rtl_layers": 1} if name == "dap" else {}
    torch.manual_seed(0)
    nested = kind(kind.Config(matryoshka=WIDTHS, **small), model, text)
    torch.manual_seed(0)
    alone = kind(kind.Config(**small), model, text)
    for step in (0, 1, 2):
        batch = batch_for(name, pairs)
        planned = plan(alone, batch, step)
        vectors = (*alone.encode(model, planned).vectors, *alone.constants(model, planned))
        expected = alone.contrast(vectors, planned).terms
        state = {key: value.clone() for key, value in alone.state_dict().items()}
        alone.eval()
        for width in WIDTHS:
            alone.width = width
            short = alone.contrast(tuple(F.normalize(vector[:, :width], dim=1) for vector in vectors), planned)
            alone.width = None
            for key, term in short.terms.items():
                expected[key].sum = expected[key].sum + term.sum
        alone.train()
        found = nested.compare(vectors, planned).terms
        for key, term in expected.items():
            assert float(found[key].sum.detach()) == pytest.approx(float(term.sum.detach()), rel=1e-6), key
        for key, value in nested.state_dict().items():
            torch.testing.assert_close(value, state[key])
        for criterion in (nested, alone):
            criterion.after_step(model)


def test_gradient_caching_gives_the_same_gradients(text, make_batch) -> None:
    model, batch = make_model(text).double(), make_batch(sentence_pairs(7))
    criterion = TranslationRanking(TranslationRanking.Config(temperature=TAU, matryoshka=WIDTHS), model, text)
    loss_of(criterion, model, batch).terms["translation_ranking"].sum.backward()
    whole = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    criterion.set_micro_batch(3)
    loss_of(criterion, model, batch).terms["translation_ranking"].sum.backward()
    for (name, parameter), gradient in zip(model.named_parameters(), whole, strict=True):
        assert parameter.grad is not None
        assert_near(parameter.grad, gradient, 1e-12, name)


def test_parts_have_widths_of_their_own(text, make_batch) -> None:
    model, batch = make_model(text), make_batch(sentence_pairs(7))
    options = {"a": {"matryoshka": WIDTHS}, "b": {}}
    configs = {name: TranslationRanking.Config(temperature=TAU, **own) for name, own in options.items()}
    parts = [Part(name, TranslationRanking, config, 1.0, 1.0) for name, config in configs.items()]
    both = Multitask(Multitask.Config(parts=parts, mixing="weight"), model, text)
    from xrep.tasks.mixture import MixedBatch

    terms = loss_of(both, model, MixedBatch({"a": batch, "b": batch})).terms
    for name, config in configs.items():
        alone = loss_of(TranslationRanking(config, model, text), model, batch).terms["translation_ranking"]
        assert torch.equal(terms[f"{name}/translation_ranking"].sum, alone.sum)


@pytest.mark.parametrize("widths", [[0], [-1], [4, 4], [2**31]])
def test_widths_that_there_are_not(widths: list[int]) -> None:
    problem = f"matryoshka must have different widths of at least 1, not {','.join(map(str, widths))}"
    for name in CONTRASTIVE:
        assert problem in CRITERIA.load(name).Config(matryoshka=widths).problems()


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_widths_of_no_shorter_vectors(text, name: str) -> None:
    model = make_model(text, towers="separate" if name == "frozen_source" else "shared")
    kind = CRITERIA.load(name)
    with pytest.raises(UserError, match="`matryoshka` has 16, and the model's vectors have 16 numbers; name smaller"):
        kind(kind.Config(matryoshka=[8, 16]), model, text)
