"""The losses of annotations beside plain float64 readings, with gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.planning import token_batch
from xrep.data.batch import Batch, TextSpec, TokenBatch
from xrep.understanding.annotated import IGNORED
from xrep.understanding.labels import Classification
from xrep.understanding.questions import Span
from xrep.understanding.tags import Tagging

TEXT = TextSpec(vocabularies={}, max_length=9)
SHAPES = {Classification: (4, 3), Tagging: (2, 4, 3), Span: (2, 4, 2)}
"""The shapes of the logits."""
LABELS = {Classification: [[2], [0], [1], [1]], Tagging: [[IGNORED, 0, IGNORED, 2], [IGNORED, 1, IGNORED, IGNORED]],
          Span: [[1, 2], [0, 0]]}  # fmt: skip
LENGTHS = {Classification: [3, 2, 3, 1], Tagging: [4, 3], Span: [4, 2]}


class Logits(nn.Module):
    """A classifier whose logits are a parameter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(3)).double())

    def forward(self, tokens: TokenBatch) -> Tensor:
        return self.logits[: len(tokens)]


def batch_of(kind: Any) -> Batch:
    sizes = torch.tensor(LENGTHS[kind])
    tokens = token_batch(torch.ones(len(sizes), int(sizes.max()), dtype=torch.int64), sizes)
    return Batch({"shared": tokens}, {"labels": torch.tensor(LABELS[kind]), "indices": torch.arange(len(sizes))})


def predictions(kind: Any, logits: Tensor) -> list[tuple[Tensor, int]]:
    """Return each softmax of the objective, over logits [L], and the label that it predicts."""
    labels = LABELS[kind]
    if kind is Classification:
        return [(row, label) for row, (label,) in zip(logits, labels, strict=True)]
    if kind is Tagging:  # first subwords alone
        return [(logits[0, 1], 0), (logits[0, 3], 2), (logits[1, 1], 1)]
    rows = [(logits[row, : LENGTHS[Span][row]], labels[row]) for row in range(2)]  # padding is left out
    return [(own[:, end], places[end]) for own, places in rows for end in (0, 1)]


@pytest.mark.parametrize("kind", SHAPES)
def test_loss_gradient_and_metric_are_those_of_the_formula(kind: Any) -> None:
    model, exact, batch = Logits(SHAPES[kind]), Logits(SHAPES[kind]), batch_of(kind)
    criterion = kind(kind.Config(), model, TEXT)
    planned = criterion.plan(batch, torch.Generator())
    loss = criterion(model, planned)
    found = predictions(kind, exact.logits)
    ends = 2 if kind is Span else 1
    expected = sum(torch.log(x.exp().sum()) - x[label] for x, label in found) / ends
    assert list(planned.sizes.values()) == [len(found) / ends]
    (term,) = loss.terms.values()
    # The losses are computed in float32, whatever the model computes in.
    torch.testing.assert_close(term.sum.double(), expected, atol=1e-5, rtol=1e-6)
    term.sum.backward()
    expected.backward()
    torch.testing.assert_close(model.logits.grad, exact.logits.grad, atol=1e-6, rtol=1e-5)
    right = [int(x.argmax()) == label for x, label in found]
    if kind is Span:
        right = [right[0] and right[1], right[2] and right[3]]
    (metric,) = loss.metrics.values()
    assert float(metric) == pytest.approx(100 * sum(right) / len(right))


@pytest.mark.parametrize("kind", SHAPES)
def test_an_empty_batch_has_a_loss_of_zero(kind: Any) -> None:
    """A rank may have no part of a batch."""
    model, batch = Logits(SHAPES[kind]), batch_of(kind)
    criterion = kind(kind.Config(), model, TEXT)
    loss = criterion(model, criterion.plan(batch.rows(1, 1), torch.Generator()))
    (term,) = loss.terms.values()
    term.sum.backward()
    assert float(term.sum.detach()) == 0 and not model.logits.grad.any()
    assert all(float(metric) == 0 for metric in loss.metrics.values())
