"""Trusted pairs that are planted one by one, against mining texts that hold them; and candidates that are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.retrieval import plain_margins
from xrep.inference.judging import Neighbourhood, plant, sample_alone
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.topk import TopK
from xrep.store.vectors import normalize_rows

K = 3


class Held(TopK):
    """Neighbours in memory, with the methods of those on disk."""

    def first(self, k: int) -> Held:
        return Held(self.similarity[:, :k], self.index[:, :k])

    def take(self, rows: np.ndarray) -> TopK:
        return TopK(self.similarity[torch.from_numpy(rows)], self.index[torch.from_numpy(rows)])


def found(x: np.ndarray, y: np.ndarray, k: int) -> Any:
    return [Held(some.similarity, some.index) for some in neighbours(x, y, k, k)]


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, ...]:
    """Texts x and y, of which every third sentence is translated, and 60 trusted pairs, hard and easy ones."""
    draw = np.random.default_rng(0)
    x, y, one = (draw.standard_normal((rows, 12)) for rows in (210, 200, 60))
    y[:70] = x[:70] + 0.4 * draw.standard_normal((70, 12))
    other = one + np.linspace(0.2, 2.0, 60)[:, None] * draw.standard_normal((60, 12))
    return tuple(normalize_rows(some.astype(np.float32)) for some in (x, y, one, other))


def planted(vectors: tuple[np.ndarray, ...], margin: Any, retrieval: Any) -> Any:
    x, y, one, other = vectors
    of_x, of_y = found(x, y, K)
    (near_one, _), (near_other, _) = found(one, y, K), found(other, x, K)
    sources, targets = Neighbourhood.of(near_one, of_x, of_y), Neighbourhood.of(near_other, of_y, of_x)
    return plant((one * other).sum(axis=1), sources, targets, margin, retrieval, one_to_one=False)


@pytest.mark.parametrize("margin", ["ratio", "distance"])
@pytest.mark.parametrize(("retrieval", "least"), [("forward", 1.0), ("intersection", 0.98), ("max", 0.9)])
def test_planting_is_mining_a_text_with_the_pair_in_it(
    vectors: tuple[np.ndarray, ...], margin: str, retrieval: str, least: float
) -> None:
    """But for two small things: what only a target's search finds is not seen, and means of other sentences stay."""
    x, y, one, other = vectors
    result, equal, right = planted(vectors, margin, retrieval), [], 0
    for place, (source, target) in enumerate(zip(one, other, strict=True)):
        with_source, with_target = np.vstack((x, source)), np.vstack((y, target))
        absent = plain_margins.pairs(with_source, y, K, margin, retrieval)
        present = plain_margins.pairs(with_source, with_target, K, margin, retrieval)
        for pairs, score in ((absent, result.absent[place]), (present, result.present[place])):
            own = [value for (row, _), value in pairs.items() if row == len(x)] or [np.nan]
            equal.append(np.isclose(own[0], score, atol=2e-6, equal_nan=True))
        is_right = (len(x), len(y)) in present
        right += is_right
        equal.append(is_right == result.is_right[place])
    assert np.mean(equal) >= least and 20 < right < 55


def test_a_choice_by_targets_needs_that_the_target_prefers_the_source(vectors: tuple[np.ndarray, ...]) -> None:
    forward, both, backward = (planted(vectors, "ratio", how) for how in ("forward", "intersection", "backward"))
    assert np.isnan(both.absent).mean() > 0.3 and not np.isnan(forward.absent).any()
    there = ~np.isnan(both.absent)
    assert np.array_equal(both.absent[there], forward.absent[there])
    assert (np.isnan(backward.absent) <= np.isnan(both.absent)).all()


def test_second_candidates_are_those_of_a_text_without_the_first(vectors: tuple[np.ndarray, ...]) -> None:
    x, y, *_ = vectors
    some = sample_alone(*found(x, y, K + 1), K, "ratio")
    whole = dict(sorted(plain_margins.pairs(x, y, K, "ratio", "forward").items()))
    assert np.allclose(some.best, list(whole.values()), atol=2e-6) and len(some.best) == len(x)
    both = plain_margins.pairs(x, y, K, "ratio", "intersection")
    assert np.mean(some.mutual == [pair in both for pair in whole]) > 0.99  # a target that is not near may prefer it
    cosine = x.astype(np.float64) @ y.astype(np.float64).T
    mean_y = np.sort(cosine, axis=0)[-K:].mean(axis=0)
    for (row, first), second in zip(whole, some.second, strict=True):
        near = [column for column in np.argsort(-cosine[row]) if column != first][:K]
        around = (cosine[row, near].mean() + mean_y[near]) / 2
        assert second == pytest.approx((cosine[row, near] / around).max(), abs=2e-6)
    assert 0.05 < some.second_mutual.mean() < some.mutual.mean()
