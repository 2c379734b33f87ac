"""translation_ranking against the plain formula, in float64."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.corpus import sentence_pairs
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.models.dual_encoder import DualEncoder

TAU = 0.07


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("masked", [True, False])
def test_loss_gradient_and_accuracy(text, make_batch, towers: str, masked: bool) -> None:
    torch.manual_seed(0)
    sizes = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
    config = DualEncoder.Config(towers=towers, **sizes, dropout=0.0, attention_dropout=0.0)
    model = DualEncoder(config, text)
    some = sentence_pairs(9)
    batch = make_batch([*some[:7], (some[0][0], some[7][1]), (some[8][0], some[1][1])])
    exact = copy.deepcopy(model).double()
    x, y = exact.encode(exact.tower("de"), batch.source)[0], exact.encode(exact.tower("en"), batch.target)[0]
    expected, found = torch.zeros((), dtype=torch.float64), 0
    for a, b in ((x, y), (y, x)):
        for i in range(9):
            equal = [masked and i != j and bool((batch.ids[i] == batch.ids[j]).any()) for j in range(9)]
            scores = {j: a[i] @ b[j] / TAU for j in range(9) if not equal[j]}
            expected = expected - torch.log(scores[i].exp() / sum(score.exp() for score in scores.values()))
            found += all(scores[i] >= score for score in scores.values())
    expected.backward()

    criterion = TranslationRanking(TranslationRanking.Config(temperature=TAU, mask_equal_sentences=masked), model, text)
    loss = criterion(model, batch)
    term = loss.terms["translation_ranking"]
    term.sum.backward()
    assert criterion.sizes(batch) == {"translation_ranking": 9}
    assert float(term.sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    if masked:  # else equal sentences tie
        assert loss.metrics["accuracy"] == pytest.approx(100 * found / 18)
    for (name, mine), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4, msg=name)


def test_problems() -> None:
    assert TranslationRanking.Config(temperature=-0.1).problems() == ["temperature must be above 0, not -0.1"]
