"""Criteria with a tokenizer that puts no token in front of a sentence: the first subword of y counts as others do."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from tests.support.runs import SMALL_MODEL
from xrep.criteria.criterion import Criterion
from xrep.criteria.dap import DAP
from xrep.criteria.hictl import HiCTL
from xrep.criteria.tlm import TLM
from xrep.data.batching import PairBatch, TextSpec, collate
from xrep.models.dual_encoder import DualEncoder

CRITERIA: dict[str, tuple[type, dict[str, Any]]] = {
    "tlm": (TLM, {}),
    "tlm, own positions": (TLM, {"position_reset": True}),
    "hictl": (HiCTL, {"sentence_contrast": False}),
    "hictl without a language model": (HiCTL, {"sentence_contrast": False, "language_model": False}),
}


@pytest.fixture
def bare(text: TextSpec) -> TextSpec:
    vocabulary = dataclasses.replace(text.vocabulary("shared"), bos_id=None)
    return dataclasses.replace(text, vocabularies={"shared": vocabulary})


@pytest.fixture
def batch(make_batch, bare: TextSpec) -> PairBatch:
    """Return five pairs without a first token."""
    made = make_batch(sentence_pairs(5))
    sides = (made.source, made.target)
    own = [[row[1:n] for row, n in zip(s.tokens.numpy(), s.host_lengths - 1, strict=True)] for s in sides]
    source, target = (collate(rows, bare.vocabulary("shared"), bare.max_length) for rows in own)
    return dataclasses.replace(made, source=source, target=target)


def make(bare: TextSpec, kind: type, **options: Any) -> tuple[DualEncoder, Criterion]:
    torch.manual_seed(0)
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    model = DualEncoder(DualEncoder.Config(**{**SMALL_MODEL, "max_positions": 96}, **rates), bare).double()
    return model, kind(kind.Config(**options), model, bare).double()


@pytest.mark.parametrize("name", CRITERIA)
def test_another_first_subword_of_y_is_another_loss(bare: TextSpec, batch: PairBatch, name: str) -> None:
    kind, options = CRITERIA[name]
    model, criterion = make(bare, kind, **options)
    changed = dataclasses.replace(batch.target, tokens=batch.target.tokens.clone())
    unused = next(i for i in range(10, 150) if not any((s.tokens == i).any() for s in (batch.source, batch.target)))
    changed.tokens[:, 0] = unused
    before, after = (loss_of(criterion, model, each) for each in (batch, dataclasses.replace(batch, target=changed)))
    assert list(before.terms)
    for term, value in before.terms.items():
        assert float(value.sum.detach()) != pytest.approx(float(after.terms[term].sum.detach()), rel=1e-6), term


def test_all_tokens_are_there_to_be_masked(bare: TextSpec, batch: PairBatch) -> None:
    _, criterion = make(bare, TLM, mask_rate=0.999)
    subwords = batch.token_count - 2 * len(batch)  # all but [SEP]
    assert sizes_of(criterion, batch)["tlm"] == subwords


def test_dap_reconstructs_all_of_y(bare: TextSpec, batch: PairBatch) -> None:
    model, criterion = make(bare, DAP, rtl_layers=1)
    assert sizes_of(criterion, batch)["rtl"] == batch.target.real_tokens
    assert loss_of(criterion, model, batch).terms["rtl"].sum.isfinite()
