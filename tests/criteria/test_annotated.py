"""The losses of annotations beside plain float64 readings, with gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xrep.criteria.annotated import Classification, Span, Tagging
from xrep.data.annotated import IGNORED, AnnotatedBatch
from xrep.data.batching import Annotation, TextSpec, TokenBatch


class Logits(nn.Module):
    """A classifier whose logits are a parameter."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, tokens: TokenBatch) -> Tensor:
        return self.logits[: len(tokens)]


def batch_of(labels: Any, lengths: list[int]) -> AnnotatedBatch:
    width, sizes = max(lengths), torch.tensor(lengths)
    tokens = TokenBatch(torch.ones(len(lengths), width, dtype=torch.long), sizes, sizes.numpy())
    return AnnotatedBatch(tokens, torch.tensor(labels), torch.arange(len(lengths)))


def log_softmax(values: Tensor, place: int) -> Tensor:
    return values[place] - torch.log(torch.exp(values).sum())


def check(
    kind: type, annotation: str, logits: Tensor, batch: AnnotatedBatch, expected: Any, size: int
) -> dict[str, Any]:
    """Compare loss and gradient with ``expected(logits)``; return the metrics."""
    text = TextSpec(vocabularies={}, max_length=9, annotation=Annotation(kind=annotation, labels=["a", "b", "c"]))  # pyright: ignore[reportArgumentType]
    model = Logits(logits.double())
    criterion = kind(kind.Config(), model, text)
    planned = criterion.plan(batch, torch.Generator())
    assert list(planned.sizes.values()) == [size]
    loss = criterion(model, planned)
    (term,) = loss.terms.values()
    (gradient,) = torch.autograd.grad(term.sum, [model.logits])
    reference = logits.double().requires_grad_()
    total = expected(reference)
    (wanted,) = torch.autograd.grad(total, [reference])
    # The losses are computed in float32, whatever the model computes in.
    torch.testing.assert_close(term.sum.double(), total, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(gradient, wanted, atol=1e-6, rtol=1e-5)
    return {name: float(value) for name, value in loss.metrics.items()}


def test_classification() -> None:
    labels = [2, 0, 1, 1]
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    metrics = check(
        Classification, "label", logits, batch_of(labels, [3, 2, 3, 1]),
        lambda x: -sum(log_softmax(row, label) for row, label in zip(x, labels, strict=True)), 4,
    )  # fmt: skip
    right = sum(int(row.argmax()) == label for row, label in zip(logits, labels, strict=True))
    assert metrics == {"accuracy": pytest.approx(25 * right)}


def test_tagging_counts_first_subwords_alone() -> None:
    labels = [[IGNORED, 0, IGNORED, 2], [IGNORED, 1, IGNORED, IGNORED]]
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2))
    places = [(0, 1, 0), (0, 3, 2), (1, 1, 1)]
    metrics = check(
        Tagging, "tags", logits, batch_of(labels, [4, 3]),
        lambda x: -sum(log_softmax(x[row, column], label) for row, column, label in places), 3,
    )  # fmt: skip
    right = sum(int(logits[row, column].argmax()) == label for row, column, label in places)
    assert metrics == {"accuracy": pytest.approx(100 * right / 3)}


def test_span_leaves_padding_out() -> None:
    ends, lengths = [[1, 2], [0, 0]], [4, 2]
    logits = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(3))

    def expected(x: Tensor) -> Tensor:
        rows = [(x[row, : lengths[row]], ends[row]) for row in range(2)]
        return -sum(log_softmax(own[:, end], places[end]) for own, places in rows for end in (0, 1)) / 2  # pyright: ignore[reportReturnType]

    metrics = check(Span, "span", logits, batch_of(ends, lengths), expected, 2)
    assert 0 <= metrics["exact"] <= 100 and not math.isnan(metrics["exact"])


def test_an_empty_batch_has_a_loss_of_zero() -> None:
    """A rank may have no part of a batch."""
    for kind, annotation, labels in ((Classification, "label", []), (Span, "span", torch.zeros(0, 2).long().tolist())):
        text = TextSpec(vocabularies={}, max_length=9, annotation=Annotation(kind=annotation, labels=["a", "b"]))  # pyright: ignore[reportArgumentType]
        shape = (0, 2) if annotation == "label" else (0, 5, 2)
        model = Logits(torch.zeros(shape))
        criterion = kind(kind.Config(), model, text)  # pyright: ignore[reportArgumentType]
        tokens = TokenBatch(torch.ones(0, 5, dtype=torch.long), torch.zeros(0).long(), torch.zeros(0).long().numpy())
        shaped = torch.tensor(labels, dtype=torch.long).view(0, 2) if annotation == "span" else torch.zeros(0).long()
        batch = AnnotatedBatch(tokens, shaped, torch.zeros(0).long())
        loss = criterion(model, criterion.plan(batch, torch.Generator()))
        (term,) = loss.terms.values()
        term.sum.backward()
        assert float(term.sum.detach()) == 0
