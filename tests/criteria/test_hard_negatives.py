"""Mined negatives in each objective that uses them, against plain formulas in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of, with_negatives
from xrep.criteria.criterion import Criterion
from xrep.criteria.dap import DAP
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.frozen_source import FrozenSource
from xrep.criteria.hictl import HiCTL
from xrep.criteria.simcse import SimCSE
from xrep.criteria.tlm import TLM
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batching import PairBatch
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask

SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
ROWS = [1, 1, 2, 4, 4, 4]
TAU = 0.1
CASES: dict[str, tuple[type[Criterion], str, dict[str, Any]]] = {
    "translation_ranking": (TranslationRanking, "translation_ranking", {"margin": 0.2}),
    "translation_ranking, forward": (TranslationRanking, "translation_ranking", {"directions": "forward"}),
    "dap": (DAP, "translation_ranking", {"rtl_layers": 1}),
    "hictl": (HiCTL, "sentence", {"language_model": False, "word_contrast": False}),
    "dual_moco": (DualMoco, "infonce", {"queue_size": 0}),
    "frozen_source": (FrozenSource, "frozen_source", {"source_side": "target"}),
    "frozen_source, trained": (FrozenSource, "frozen_source", {"source_side": "target", "source": "trained"}),
}


@pytest.fixture
def batch(make_batch) -> PairBatch:
    """Six pairs, three of which have 2, 1 and 3 negatives."""
    pairs = sentence_pairs(12)
    return with_negatives(make_batch(pairs[:6]), make_batch(pairs[6:]).target, ROWS)


def make(text, name: str) -> tuple[DualEncoder, Criterion]:
    torch.manual_seed(0)
    kind, _, options = CASES[name]
    towers = "separate" if name.startswith("frozen") else "shared"
    config = DualEncoder.Config(**SMALL, towers=towers, normalize=kind is not HiCTL, dropout=0.0, attention_dropout=0.0)
    model = DualEncoder(config, text).double()
    with torch.no_grad():  # initial weights are small, so that all sentences would be similar
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    learnable = {"learnable_temperature": False} if kind is FrozenSource else {}
    criterion = kind(kind.Config(temperature=TAU, **options, **learnable), model, text).double()
    return model, criterion


def loss(query: Tensor, key: Tensor, others: list[Tensor], margin: float = 0.0) -> Tensor:
    """The summed loss of queries and their keys, given the further negatives of each."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(query)):
        right = (query[i] @ key[i] - margin) / TAU
        rest = torch.cat([torch.cat([key[:i], key[i + 1 :]]) @ query[i], others[i] @ query[i]]) / TAU
        total = total + torch.cat([right[None], rest]).logsumexp(0) - right
    return total


def expected(name: str, model: DualEncoder, batch: PairBatch) -> Tensor:
    assert batch.negatives is not None
    x = model.encode(model.tower("de"), batch.source)[0]
    y = model.encode(model.tower("en"), batch.target)[0]
    n = model.encode(model.tower("en"), batch.negatives.tokens)[0]
    if name == "hictl":
        x, y, n = (F.normalize(side, dim=1) for side in (x, y, n))
    own = [n[batch.negatives.rows == row] for row in range(len(x))]
    none = [n[:0]] * len(x)
    if name == "hictl":  # a query is compared with both sides
        beside = [[torch.cat([side[:i], side[i + 1 :]]) for i in range(len(x))] for side in (x, y)]
        first = [torch.cat([some, mine]) for some, mine in zip(beside[0], own, strict=True)]
        return loss(x, y, first) + loss(y, x, beside[1])
    if name == "dual_moco":  # keys have no gradient
        return loss(x, y.detach(), [some.detach() for some in own]) + loss(y, x.detach(), none)
    if name == "frozen_source":
        return loss(x, y.detach(), [some.detach() for some in own])
    margin = 0.2 if name == "translation_ranking" else 0.0
    forward = loss(x, y, own, margin)
    return forward + loss(y, x, none, margin) if name == "translation_ranking" else forward


@pytest.mark.parametrize("micro_batch", [None, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(text, batch, name: str, micro_batch: int | None) -> None:
    model, criterion = make(text, name)
    exact, other = copy.deepcopy(model), batch
    wanted = expected(name, exact, other)
    wanted.backward()
    if micro_batch is not None:
        criterion.set_micro_batch(micro_batch)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(parameter_name.startswith(f"{part}.") for part in criterion.frozen))
    found = loss_of(criterion, model, batch)
    term = CASES[name][1]
    found.terms[term].sum.backward()
    assert found.terms[term].sum.item() == pytest.approx(wanted.item(), rel=1e-10)
    assert sizes_of(criterion, batch)[term] == (12 if name == "hictl" else 6)
    largest = max(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None)
    for (parameter, mine), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        if mine.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-9 * largest, msg=parameter)
        else:
            assert theirs.grad is None or not theirs.grad.any() or parameter.startswith(tuple(criterion.frozen))
    without = loss_of(criterion, model, replace(batch, negatives=None)).terms[term].sum.item()
    assert without < wanted.item() - 0.01, "the negatives count"


@pytest.mark.parametrize("widths", [[8, 4]])
def test_shortened_vectors_have_negatives_too(text, batch, widths: list[int]) -> None:
    model, _ = make(text, "translation_ranking")
    nested = TranslationRanking(TranslationRanking.Config(temperature=TAU, matryoshka=widths), model, text)
    term = loss_of(nested, model, batch).terms["translation_ranking"].sum
    sides = [*model.encode_pair(batch.source, batch.target), model.encode("shared", batch.negatives.tokens)[0]]
    total = torch.zeros((), dtype=torch.float64)
    for width in (16, *widths):
        x, y, n = (F.normalize(side[:, :width], dim=1) for side in sides)
        own = [n[batch.negatives.rows == row] for row in range(len(x))]
        total = total + loss(x, y, own) + loss(y, x, [n[:0]] * len(x))
    assert term.item() == pytest.approx(total.item(), rel=1e-10)


def test_negatives_do_not_join_the_queue(text, batch) -> None:
    model, _ = make(text, "dual_moco")
    criterion = DualMoco(DualMoco.Config(queue_size=20), model, text).double().train()
    first = loss_of(criterion, model, batch)
    assert first.terms["infonce"].sum > 0, "the queues are empty, and the negatives are there"
    criterion.after_step(model)
    assert criterion.target_queue is not None and int(criterion.target_queue.count) == 6


def test_objectives_without_use_for_them_refuse_them(text, data_directory, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path))
    task = BitextTask(BitextTask.Config(data=str(data_directory)), 1)
    task.has_hard_negatives = True
    torch.manual_seed(0)
    shared = DualEncoder(DualEncoder.Config(**SMALL, towers="shared"), text)
    separate = DualEncoder(DualEncoder.Config(**SMALL, towers="separate"), text)
    refusing: list[tuple[type[Criterion], nn.Module, dict[str, Any]]] = [
        (SimCSE, shared, {}),
        (TLM, shared, {}),
        (HiCTL, shared, {"sentence_contrast": False}),
        (FrozenSource, separate, {}),
        (FrozenSource, separate, {"source_side": "target", "loss": "mse"}),
    ]
    for kind, model, options in refusing:
        criterion = kind(kind.Config(**options), model, text)
        with pytest.raises(UserError, match="^`negatives`: this criterion, as it is set, has no use for them; "):
            criterion.check_task(task)
    for name in CASES:
        make(text, name)[1].check_task(task)
