"""How word_infonce samples; that it equals HiCTL's equation 7 for what it sampled is in the table of kernels."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch
from torch import Tensor

from xrep.kernels.word_infonce import word_infonce

module = importlib.import_module("xrep.kernels.word_infonce")  # the package has the function by this name
SPECIAL = torch.tensor([0, 3])


@pytest.fixture(params=[1, 130, 10**6], ids=["one row", "some rows", "all rows"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of similarities from which words are drawn at a time."""
    monkeypatch.setattr(module, "BLOCK_KEYS", request.param)
    return request.param


def make(rows: int = 7, words: int = 61, size: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, word vectors, the words of each pair and which of them count."""
    generator = torch.Generator().manual_seed(3)
    query, embedding = (torch.randn(n, size, generator=generator, dtype=torch.float64) for n in (rows, words))
    texts = torch.stack([torch.randperm(words, generator=generator)[:6] for _ in range(rows)])
    return query, embedding, texts, ~torch.isin(texts, SPECIAL)


@pytest.mark.parametrize("samples", [5, 1000])
def test_what_is_never_sampled(block: int, samples: int) -> None:
    query, embedding, words, bag = make()
    for _ in range(10):
        sampled = word_infonce(query, embedding, words, bag, 0.05, special=SPECIAL, samples=samples).sampled
        for row, pair in zip(sampled.tolist(), words.tolist(), strict=True):
            drawn, others = [word for word in row if word >= 0], set(range(61)) - {*pair, *SPECIAL.tolist()}
            assert len(drawn) == len(set(drawn)) == min(samples, len(others)) and {*drawn} <= others


def inclusion(weights: list[float], count: int) -> list[float]:
    """Return how often each item is among ``count`` drawn one by one without replacement, by enumerating all orders."""
    found = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), count):
        left, chance = sum(weights), 1.0
        for place in order:
            chance *= weights[place] / left
            left -= weights[place]
        for place in order:
            found[place] += chance
    return found


@pytest.mark.parametrize("samples", [1, 3])
def test_words_are_drawn_with_their_probabilities(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 9 words is special and one is in the bag; the other 7 have very different probabilities."""
    rows, tau = 20_000, 0.5
    monkeypatch.setattr(module, "BLOCK_KEYS", 50_000)
    embedding = make(1, 9, 4)[1]
    embedding[0] = embedding[5]
    query, words = torch.tensor([[1.0, -2.0, 0.5, 1.0]], dtype=torch.float64), torch.full((rows, 1), 4)
    torch.manual_seed(0)
    given = query.expand(rows, 4), embedding, words, torch.ones_like(words).bool(), tau
    sampled = word_infonce(*given, special=torch.tensor([7]), samples=samples).sampled
    left = [word for word in range(9) if word not in (4, 7)]
    scores = torch.nn.functional.cosine_similarity(query, embedding[left]) / tau
    expected = torch.tensor(inclusion(scores.exp().tolist(), samples))
    share = torch.bincount(sampled.flatten(), minlength=9)[left] / rows
    assert ((share - expected).abs() < 4.5 * (expected * (1 - expected) / rows).sqrt()).all(), (share, expected)
    assert all(len(set(row)) == samples for row in sampled.tolist())


@pytest.mark.parametrize("keys", [4000, 8000], ids=["row by row", "rows together"])
def test_every_query_and_every_call_draws_anew(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_KEYS", keys)
    query, embedding, words, bag = make(1, 4000, 4)
    given = query.expand(2, 4), embedding, words.expand(2, -1), bag.expand(2, -1), 1.0
    torch.manual_seed(0)
    calls = [word_infonce(*given, special=SPECIAL, samples=512).sampled for _ in range(2)]
    drawn = [set(row.tolist()) for sampled in calls for row in sampled]
    for one, other in itertools.combinations(drawn, 2):
        assert 30 < len(one & other) < 130  # 512²/4000 = 66 if independent
    torch.manual_seed(0)
    again = word_infonce(*given, special=SPECIAL, samples=512).sampled
    assert torch.equal(again.sort(1).values, calls[0].sort(1).values)


def test_correct_is_to_beat_every_sampled_word() -> None:
    embedding = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0], [2.0, 0.2]])
    words, bag = torch.tensor([[0, 2], [1, 2]]), torch.tensor([[True, True], [True, False]])
    found = word_infonce(torch.eye(2)[[0, 0]], embedding, words, bag, 1.0, special=torch.tensor([3]), samples=9)
    # Row 0: S = {1, 4} lies between words 0 and 2. Row 1: S = {0, 4}, and word 1 has the direction of 4: a tie.
    assert found.correct.tolist() == [[True, False], [False, False]]
    assert [sorted({*row} - {-1}) for row in found.sampled.tolist()] == [[1, 4], [0, 4]]


def test_without_words_to_find_or_other_words(block: int) -> None:
    query, embedding, words, bag = make()
    everything = torch.arange(61).expand(7, 61)
    for texts, counted in ((words, torch.zeros_like(bag)), (everything, torch.ones_like(everything).bool())):
        leaves = [side.clone().requires_grad_() for side in (query, embedding)]
        found = word_infonce(*leaves, texts, counted, 0.05, special=SPECIAL, samples=4)
        found.loss.sum().backward()
        assert not found.loss.any() and torch.equal(found.correct, counted)
        assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)
