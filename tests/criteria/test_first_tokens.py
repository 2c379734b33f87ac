"""Criteria with a tokenizer that puts no token in front of a sentence: the first subword of y counts as others do."""

import dataclasses

import pytest
import torch

from tests.criteria.objectives import Maker, Objective, align, hictl, tlm
from tests.support.planning import loss_of, sizes_of
from xrep.data.batch import Batch, collate

KINDS = {"tlm": tlm(), "hictl": hictl(sentence_contrast=False),
         "hictl without a language model": hictl(sentence_contrast=False, language_model=False)}  # fmt: skip


@pytest.fixture
def bare(text, make_batch) -> Maker:
    vocabulary = dataclasses.replace(text.vocabulary("shared"), bos_id=None)
    return Maker(dataclasses.replace(text, vocabularies={"shared": vocabulary}), make_batch)


@pytest.fixture
def batch(bare: Maker) -> Batch:
    """Return pairs without a first token."""
    made = bare.batch("pairs")
    own = [
        [row[1:n] for row, n in zip(s.tokens.numpy(), s.host_lengths, strict=True)] for s in (made.source, made.target)
    ]
    source, target = (collate([row[:-1] for row in rows], bare.text.vocabulary("shared"), 48) for rows in own)
    return dataclasses.replace(made, sides={"source": source, "target": target})


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS)
def test_another_first_subword_of_y_is_another_loss(bare: Maker, batch: Batch, own: Objective) -> None:
    model, criterion = bare.build(own)
    tokens = batch.target.tokens.clone()
    tokens[:, 0] = next(
        i for i in range(10, 150) if not any((s.tokens == i).any() for s in (batch.source, batch.target))
    )
    target = dataclasses.replace(batch.target, tokens=tokens)
    changed = dataclasses.replace(batch, sides={"source": batch.source, "target": target})
    before, after = (loss_of(criterion, model, each).terms for each in (batch, changed))
    for term, value in before.items():
        assert not torch.isclose(value.sum, after[term].sum, rtol=1e-6), term


def test_all_tokens_can_be_masked_or_reconstructed(bare: Maker, batch: Batch) -> None:
    _, criterion = bare.build(tlm(mask_rate=0.999))
    assert sizes_of(criterion, batch)["tlm"] == batch.token_count - 2 * len(batch)  # all but [SEP]
    model, criterion = bare.build(align("pairs"))
    assert sizes_of(criterion, batch)["rtl"] == batch.target.real_tokens
    assert loss_of(criterion, model, batch).terms["rtl"].sum.isfinite()
