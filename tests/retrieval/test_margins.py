"""Margins against their formulas, and the choice of pairs against loops over whole arrays."""

import os
from typing import get_args

import numpy as np
import pytest
import torch

from tests.retrieval import plain_margins
from tests.retrieval.test_neighbours import vectors
from xrep.retrieval import margins
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.margins import Margin, Retrieval, apply_margin, choose, margin_scores
from xrep.retrieval.topk import TopK

X, Y = np.abs(vectors(60, 8, seed=1)), np.abs(vectors(45, 8, seed=2))
"""Vectors of positive numbers, whose cosines are all positive."""


@pytest.mark.parametrize("margin", get_args(Margin))
@pytest.mark.parametrize("k", [1, 4, 45])
def test_scores_of_all_pairs(margin: str, k: int) -> None:
    expected = plain_margins.scores(X, Y, k, margin)
    found = margin_scores(X, Y, k, margin)
    assert found.shape == (60, 45) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)
    exact = margin_scores(X.astype(np.float64), Y.astype(np.float64), k, margin)
    np.testing.assert_allclose(exact, expected, atol=1e-12)


def test_a_mean_below_zero_makes_no_pair_the_best() -> None:
    scores = apply_margin(np.array([-0.1, 0.5]), np.array([-0.3, 0.4]), np.array([0.1, 0.4]), "ratio")
    np.testing.assert_allclose(scores, [-np.inf, 1.25])


@pytest.mark.parametrize("margin", get_args(Margin))
@pytest.mark.parametrize("retrieval", get_args(Retrieval))
def test_candidates_are_those_of_the_plain_version(margin: str, retrieval: str) -> None:
    found = choose(*neighbours(X, Y, 4, 4), margin, retrieval)
    expected = plain_margins.pairs(X, Y, 4, margin, retrieval)
    ordered = sorted(expected, key=expected.get, reverse=True)
    assert list(zip(found.source.tolist(), found.target.tolist(), strict=True)) == ordered
    np.testing.assert_allclose(found.score, sorted(expected.values(), reverse=True), atol=2e-6)


@pytest.mark.parametrize("retrieval", get_args(Retrieval))
def test_one_to_one_takes_the_best_pair_that_is_free(retrieval: str) -> None:
    near = neighbours(X, Y, 4, 4)
    found = choose(*near, "ratio", retrieval, one_to_one=True)
    assert len(set(found.source.tolist())) == len(set(found.target.tolist())) == len(found)
    if retrieval == "intersection":  # each side is in only one pair already
        assert len(found) == len(choose(*near, "ratio", retrieval))
    sets = ("forward", "backward") if retrieval == "max" else (retrieval,)
    candidates = [pair for name in sets for pair in _all_candidates(near, name)]
    taken: list[tuple[int, int]] = []
    for _, source, target in sorted(set(candidates), key=lambda one: (-one[0], *one[1:])):
        if all(source != pair[0] and target != pair[1] for pair in taken):
            taken.append((source, target))
    assert list(zip(found.source.tolist(), found.target.tolist(), strict=True)) == taken


@pytest.mark.slow
@pytest.mark.parametrize("one_to_one", [False, True])
@pytest.mark.parametrize("retrieval", get_args(Retrieval))
def test_blocks_in_files_are_those_in_memory(tmp_path, monkeypatch, retrieval, one_to_one):
    """Rows occur several times, so that many scores are equal."""
    near = neighbours(np.tile(X, (4, 1)), np.tile(Y, (5, 1)), 4, 4)
    whole = choose(*near, "ratio", retrieval, one_to_one=one_to_one)
    monkeypatch.setattr(margins, "_SCORED", 64)
    monkeypatch.setattr(margins, "_SORTED", 8)
    blocks, before, opened = list[margins.Candidates](), len(os.listdir("/dev/fd")), set[int]()
    for block in margins.choose_in_blocks(*near, "ratio", retrieval, one_to_one=one_to_one, folder=tmp_path):
        blocks.append(block)
        opened.add(len(os.listdir("/dev/fd")))
    assert len(blocks) > 3 and max(opened) <= before + 1
    for name, column in vars(whole).items():
        assert np.concatenate([vars(block)[name] for block in blocks]).tobytes() == column.tobytes()
    assert list(tmp_path.iterdir()) == []


def _all_candidates(near: tuple[TopK, TopK], retrieval: str) -> list[tuple[float, int, int]]:
    """Backward first gives the best source of each target, so sources are repeated; then each source is used once."""
    if retrieval == "backward":
        turned = choose(near[1], near[0], "ratio", "forward")
        columns = turned.score, turned.target, turned.source
    else:
        found = choose(*near, "ratio", retrieval)
        columns = found.score, found.source, found.target
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_neighbours_that_an_approximate_search_missed_count_for_nothing() -> None:
    none, some = [-1, -1], [0, -1]
    x = TopK(torch.tensor([[0.5, -np.inf], [-np.inf, -np.inf]]), torch.tensor([some, none]))
    y = TopK(torch.tensor([[0.5, -np.inf]]), torch.tensor([some]))
    pairs = choose(x, y, "ratio", "max")
    assert (pairs.source.tolist(), pairs.target.tolist(), pairs.score.tolist()) == ([0], [0], [1.0])
