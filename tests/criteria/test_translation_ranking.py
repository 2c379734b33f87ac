"""translation_ranking against the plain formula in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.closeness import assert_near
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.models.dual_encoder import DualEncoder

TAU = 0.07


def plain(x: Tensor, y: Tensor, ids: Tensor | None, before: float, after: float) -> tuple[Tensor, int]:
    """Return the loss of finding each y from its x, and how many are found.

    Args:
        before: Margin that is subtracted before the division by the temperature.
        after: Margin that is subtracted after it.
    """
    loss, found = torch.zeros((), dtype=torch.float64), 0
    for i in range(len(x)):
        scores = {
            j: x[i] @ y[j] / TAU
            for j in range(len(y))
            if j != i and (ids is None or not bool((ids[i] == ids[j]).any()))
        }
        right = (x[i] @ y[i] - before) / TAU - after
        loss = loss - torch.log(right.exp() / (right.exp() + sum(score.exp() for score in scores.values())))
        found += all(right > score for score in scores.values())
    return loss, found


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask_equal_sentences": True},
        {"margin": 0.3},  # CMLM
        {"margin": 0.3, "margin_scale": "logit"},
        {"margin": 0.2, "directions": "forward", "mask_equal_sentences": True},
        {"margin": 0.2, "margin_scale": "logit", "directions": "forward"},  # DAP's released code, whose margin is 0
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_loss_gradient_and_accuracy(text, make_batch, towers: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    sizes = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
    config = DualEncoder.Config(towers=towers, **sizes, dropout=0.0, attention_dropout=0.0)
    model = DualEncoder(config, text)
    some = sentence_pairs(9)
    batch = make_batch([*some[:7], (some[0][0], some[7][1]), (some[8][0], some[1][1])])
    exact = copy.deepcopy(model).double()
    x, y = exact.encode(exact.tower("de"), batch.source)[0], exact.encode(exact.tower("en"), batch.target)[0]
    ids, margin = batch.ids if "mask_equal_sentences" in options else None, options.get("margin", 0.0)
    margins = (0.0, margin) if options.get("margin_scale") == "logit" else (margin, 0.0)
    sides = [(x, y)] if "directions" in options else [(x, y), (y, x)]
    results = [plain(one, other, ids, *margins) for one, other in sides]
    expected = sum(loss for loss, _ in results)
    expected.backward()

    criterion = TranslationRanking(TranslationRanking.Config(temperature=TAU, **options), model, text)
    loss = loss_of(criterion, model, batch)
    term = loss.terms["translation_ranking"]
    term.sum.backward()
    assert sizes_of(criterion, batch) == {"translation_ranking": 9}
    assert float(term.sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    if ids is not None or margin:  # otherwise equal sentences tie
        found = sum(count for _, count in results)
        assert loss.metrics["accuracy"] == pytest.approx(100 * found / (9 * len(sides)))
    for (name, mine), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert_near(mine.grad, theirs.grad, 5e-5, name)


def test_problems() -> None:
    config = TranslationRanking.Config(temperature=-0.1, margin=-1.0)
    assert config.problems() == [
        "temperature must lie in [0.0001, 10000], not -0.1",
        "margin must lie in [0, 1000000], not -1.0",
    ]
    assert TranslationRanking.Config().problems() == []
