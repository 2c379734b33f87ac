"""cmlm on real sentences against the paper's formulas in float64; use of s1 by s2; batches, ranks and resuming."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.criteria.cmlm_reference import reference
from tests.criteria.test_batches import NoWaiting
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of, token_batch
from tests.support.runs import compose_run, contents
from xrep.criteria.cmlm import CMLM
from xrep.data.batching import PairBatch, TextSpec
from xrep.data.masking import Masked, mask_counts, mask_tokens
from xrep.errors import UserError
from xrep.models.directory import open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.training.run import train

SMALL = {"hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 60}
OF_MODEL = ("norm", "pooled_layer", "dropout", "pooling", "projection", "projection_spaces", "projection_size",
            "normalize", "max_positions", "towers")  # fmt: skip


@pytest.fixture(scope="module")
def batch(make_batch) -> PairBatch:
    """Return nine pairs of neighbouring English sentences of different lengths."""
    sentences = [english * (1 + number % 2) for number, (_, english) in enumerate(sentence_pairs(10))]
    return make_batch(list(zip(sentences, sentences[1:], strict=False)))


def make(text: TextSpec, **options: Any) -> tuple[DualEncoder, CMLM]:
    """A model and its criterion, with weights that are all different."""
    torch.manual_seed(0)
    of_model = {name: options.pop(name) for name in OF_MODEL if name in options}
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    config = DualEncoder.Config(**{"towers": "shared", "layers": 2, **SMALL, **rates, **of_model})
    model = DualEncoder(config, text).double()
    cmlm = CMLM(CMLM.Config(**{"projections": 3, **options}), model, text).double()
    with torch.no_grad():
        for parameter in nn.ModuleList([model, cmlm]).parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, cmlm


def summed(cmlm: CMLM, model: nn.Module, batch: PairBatch, seed: int = 5) -> Tensor:
    """The summed loss; which tokens are masked depends only on the seed."""
    return loss_of(cmlm, model, batch, seed).terms["cmlm"].sum


CASES = {
    "as published": {},
    "one vector": {"projections": 1},
    "vectors at positions": {"vector_embedding": "positioned"},
    "vectors as they are": {"vector_embedding": "raw", "projections": 2},
    "pre-norm": {"norm": "pre", "projections": 5},
    "pre-norm, as they are": {"norm": "pre", "vector_embedding": "raw"},
    "skip": {"skip": True},
    "proj": {"projection": "spaces", "projection_spaces": 3},
    "proj and skip, at positions": {
        "projection": "spaces", "projection_spaces": 4, "projections": 4, "skip": True, "vector_embedding": "positioned"
    },
    "cls": {"pooling": "cls", "mask_rate": 0.5},
    "max, of the first layer": {"pooling": "max", "pooled_layer": 1},
    "a linear projection": {"projection_size": 16, "projections": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(text: TextSpec, batch: PairBatch, name: str) -> None:
    model, cmlm = make(text, **CASES[name])
    exact, exact_cmlm = copy.deepcopy(model), copy.deepcopy(cmlm)
    generator = torch.Generator().manual_seed(5)
    masked = mask_tokens(batch.target, text.vocabulary("shared"), cmlm.config.mask_rate, generator)
    expected = reference(exact, exact_cmlm, batch.source, masked)
    expected.backward()
    planned = plan(cmlm, batch, 5)
    loss = cmlm(model, planned)
    (term,) = loss.terms.values()
    torch.testing.assert_close(term.sum, expected, rtol=1e-12, atol=0)
    term.sum.backward()
    assert planned.sizes == {"cmlm": len(masked.labels)} and loss.rows["accuracy"] == len(masked.labels)
    named = [*nn.ModuleDict({"model": model, "cmlm": cmlm}).named_parameters()]
    theirs = [*exact.parameters(), *exact_cmlm.parameters()]
    for (parameter, mine), other in zip(named, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-12, msg=parameter)
    for spaces in (module for module in (cmlm.spaces, *model.projections.values()) if module is not None):
        assert all(parameter.grad.any() for parameter in spaces.parameters())


@pytest.mark.parametrize("name", ["as published", "skip", "proj", "vectors at positions", "vectors as they are"])
def test_s2_knows_of_s1_by_the_vectors_alone(text: TextSpec, batch: PairBatch, make_batch, name: str) -> None:
    model, cmlm = make(text, **CASES[name])
    others = make_batch([(f"{german} {german}", english) for german, english in sentence_pairs(29)[20:]]).source
    replaced = dataclasses.replace(batch, source=others)
    plain, vectors = summed(cmlm, model, batch), cmlm.vectors(model, batch.source).detach()
    assert not torch.isclose(summed(cmlm, model, replaced), plain, rtol=1e-8)
    cmlm.vectors = lambda model, sentences: vectors
    assert torch.equal(summed(cmlm, model, replaced), plain)
    for space in range(vectors.size(1)):
        changed = vectors.clone()
        changed[:, space] += torch.randn_like(changed[:, space])
        cmlm.vectors = lambda model, sentences, changed=changed: changed
        assert not torch.isclose(summed(cmlm, model, batch), plain, rtol=1e-8), f"nothing reads vector {space}"
    cmlm.vectors = lambda model, sentences: vectors.flip(0)
    assert not torch.isclose(summed(cmlm, model, batch), plain, rtol=1e-8), "pairs are mixed up"


def test_each_vector_is_of_its_own_s1(text: TextSpec, batch: PairBatch) -> None:
    """The losses of pairs add up and do not depend on the rest of the batch."""
    model, cmlm = make(text)
    whole = cmlm.vectors(model, batch.source)
    parts = [cmlm.vectors(model, batch.rows(*bounds).source) for bounds in ((0, 4), (4, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
    assert sum(sizes_of(cmlm, batch.rows(row, row + 1))["cmlm"] for row in range(9)) == sizes_of(cmlm, batch)["cmlm"]


def test_the_gap_is_the_loss_with_other_sentences_minus_the_loss(text: TextSpec, batch: PairBatch) -> None:
    model, cmlm = make(text)
    assert "gap" not in loss_of(cmlm, model, batch).metrics
    cmlm.eval()
    moved = np.roll(np.arange(len(batch)), len(batch) // 2)
    other = dataclasses.replace(batch, source=batch.source.select(moved))
    given, swapped = (loss_of(cmlm, model, each) for each in (batch, other))
    tokens = sizes_of(cmlm, batch)["cmlm"]
    expected = (swapped.terms["cmlm"].sum - given.terms["cmlm"].sum) / tokens
    torch.testing.assert_close(given.metrics["gap"], expected, rtol=1e-9, atol=1e-12)
    assert abs(expected) > 1e-4 and given.rows["gap"] == tokens
    # One row has no other sentence.
    assert loss_of(cmlm, model, batch.rows(0, 1)).rows["gap"] == 0


def test_one_projection_is_the_sentence_vector(text: TextSpec, batch: PairBatch) -> None:
    model, cmlm = make(text, projections=1, normalize=False)
    assert not [*cmlm.spaces.parameters()]
    torch.testing.assert_close(cmlm.vectors(model, batch.source)[:, 0], model.encode("shared", batch.source)[0])
    model, cmlm = make(text, projections=4, normalize=True)
    vectors = cmlm.vectors(model, batch.source)
    assert vectors.shape == (9, 4, 16) and not torch.allclose(vectors[:, 0].norm(dim=1), torch.ones(9).double())
    assert torch.pdist(vectors[0]).min() > 1e-3, "two spaces are one"


def test_special_tokens_are_never_masked(text: TextSpec, batch: PairBatch) -> None:
    _, cmlm = make(text, mask_rate=1.0)
    vocabulary = text.vocabulary("shared")
    found: list[Masked] = [plan(cmlm, batch, seed).details for seed in range(20)]
    special = torch.tensor([vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id])
    for masked in found:
        assert not torch.isin(masked.labels, special).any() and len(masked.labels) == sizes_of(cmlm, batch)["cmlm"]
        kept = torch.isin(batch.target.tokens, special)
        assert torch.equal(masked.batch.tokens[kept], batch.target.tokens[kept]) and kept.any()
    shown = torch.stack([masked.batch.tokens for masked in found])
    assert (shown != batch.target.tokens).any(dim=0)[~kept].all(), "not all others are masked"


def test_how_many_tokens_are_masked(text: TextSpec) -> None:
    """80 of 256 tokens are masked, as in the paper."""
    vocabulary = text.vocabulary("shared")
    tokens = torch.full((1, 256), vocabulary.mask_id + 1)
    counts = mask_counts(token_batch(tokens, torch.tensor([256])), vocabulary, CMLM.Config().mask_rate)
    assert counts.tolist() == [80]


@pytest.mark.parametrize("kind", ["float32", "float64", "bf16 autocast"])
@pytest.mark.parametrize("name", ["as published", "skip", "proj", "vectors at positions", "vectors as they are"])
def test_a_batch_of_no_rows_is_worth_nothing(text: TextSpec, batch: PairBatch, name: str, kind: str) -> None:
    model, cmlm = make(text, **CASES[name], dropout=0.1)
    both = nn.ModuleList([model, cmlm]).train()
    both.double() if kind == "float64" else both.float()
    for part in (batch, batch.rows(3, 3), batch.rows(0, 1)):
        both.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in kind):
            loss = loss_of(cmlm, model, part)
        (term,) = loss.terms.values()
        term.sum.backward()
        assert term.sum.isfinite() and all(metric.isfinite() for metric in loss.metrics.values())
        for parameter in both.parameters():  # the engine waits for gradients of all parameters on every rank
            assert parameter.grad is not None and parameter.grad.isfinite().all()
            assert len(part) or not parameter.grad.any()
        assert (len(part) > 0) is bool(term.sum.detach() > 0) is (sizes_of(cmlm, part)["cmlm"] > 0)


@pytest.mark.parametrize("name", CASES)
def test_a_step_does_not_wait_for_the_device(text: TextSpec, batch: PairBatch, name: str) -> None:
    model, cmlm = make(text, **CASES[name])
    planned = plan(cmlm, batch).to("cpu")
    with NoWaiting():
        cmlm(model, planned).terms["cmlm"].sum.backward()


@pytest.mark.slow
def test_it_learns_to_read_the_other_sentence(text: TextSpec, make_batch) -> None:
    """If s1 is the translation of s2, the loss of new pairs is much lower than with a wrong s1."""
    torch.manual_seed(0)
    sizes = {**SMALL, "hidden_size": 64, "feedforward_size": 128, "dropout": 0.0, "attention_dropout": 0.0}
    model = DualEncoder(DualEncoder.Config(towers="shared", layers=1, norm="pre", **sizes), text)
    cmlm = CMLM(CMLM.Config(projections=4, mask_rate=0.5), model, text)
    optimizer = torch.optim.AdamW([*model.parameters(), *cmlm.parameters()], lr=3e-3)
    pairs = sentence_pairs(1000)
    whole, new = make_batch(pairs[:900]), make_batch(pairs[900:])
    for step in range(170):
        batch = whole.rows(32 * step % 896, 32 * step % 896 + 32)
        planned = plan(cmlm, batch, step)
        loss = cmlm(model, planned).terms["cmlm"].sum / planned.sizes["cmlm"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wrong = dataclasses.replace(new, source=make_batch(pairs[893:993]).source)
    with torch.no_grad():
        assert summed(cmlm, model, wrong) > 1.1 * summed(cmlm, model, new)


def test_going_on_is_the_same_as_never_stopping(data_directory, tmp_path: Path) -> None:
    """Masks and dropout continue exactly after a resumption."""
    given = {"criterion": "cmlm", "projections": 3, "lr_scheduler": "constant", "save_every": 4, "log_every": 1}
    once = train(compose_run(data_directory, tmp_path / "once", max_steps=7, **given))
    train(compose_run(data_directory, tmp_path / "twice", max_steps=4, **given))
    twice = train(compose_run(data_directory, tmp_path / "twice", max_steps=7, **given))
    one, other = (contents(summary.directory / "checkpoint-00000007") for summary in (once, twice))
    for name in ("model.safetensors", "criterion.safetensors"):
        assert one[name] == other[name]
    saved = open_checkpoint(twice.directory / "last").tensors("criterion.safetensors")
    assert "spaces.perceptrons.1.4.weight" in saved and "spaces.perceptrons.2.0.weight" not in saved


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"projection_size": 8}, "sentence vectors have the width 8, token vectors 16; leave out `projection_size`"),
        ({"projection": "spaces"}, "3 projections, but the model has 15 spaces; give `projections` and"),
        ({"vector_embedding": "positioned", "projections": 13}, "13 vectors and 48 subwords, but 60 positions"),
        ({"towers": "separate"}, "share one encoder; set `towers` to shared"),
    ],
)
def test_refusals(text: TextSpec, options: dict, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make(text, **options)


def test_problems() -> None:
    config = CMLM.Config(projections=0, mask_rate=0.0)
    assert [problem.split()[0] for problem in config.problems()] == ["projections", "mask_rate"]
    assert CMLM.Config().problems() == [] and CMLM.Config().mask_rate == 80 / 256
