"""word_infonce against HiCTL's equation 7 in loops over words, in float64, and its samples against enumeration."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from xrep.kernels.word_infonce import WordInfoNCE, word_infonce

module = importlib.import_module("xrep.kernels.word_infonce")  # the package has the function by this name

SPECIAL = torch.tensor([0, 3])
CHUNKS = [1, 40, 10**6]
"""Numbers of similarities held at a time: those of one word, of a few, of all."""


@contextmanager
def chunks(logits: int, cached: int = 30) -> Iterator[None]:
    """Hold this number of similarities at a time, and draw words from this number, which is that of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_LOGITS", logits)
        patch.setattr(module, "CACHED_KEYS", cached)
        yield


def make(rows: int = 7, words: int = 61, size: int = 9, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, word vectors of many lengths (one is 0), the words of each pair and which of them count."""
    generator = torch.Generator().manual_seed(seed)
    query = 3 * torch.randn(rows, size, generator=generator, dtype=torch.float64)
    embedding = torch.randn(words, size, generator=generator, dtype=torch.float64)
    embedding *= 10 ** torch.rand(words, 1, generator=generator, dtype=torch.float64)
    embedding[SPECIAL[0]] = 0
    texts = [torch.randperm(words, generator=generator)[:6] for _ in range(rows)]
    texts = torch.stack([torch.cat([text, text[:2], SPECIAL]) for text in texts])
    counted = torch.tensor(6 * [True] + 4 * [False]) & ~torch.isin(texts, SPECIAL)
    return query, embedding, texts, counted


def formula(query: Tensor, embedding: Tensor, words: Tensor, bag: Tensor, tau: float, sampled: Tensor) -> Tensor:
    """Return equation 7 for each pair with a given S."""

    def score(i: int, word: int) -> Tensor:
        q, e = query[i], embedding[word]
        return (q @ e) / (q.norm() * e.norm()) / tau

    losses = []
    for i in range(len(query)):
        inside = sorted({int(word) for word, counted in zip(words[i], bag[i], strict=True) if counted})
        outside = sum((score(i, int(w)).exp() for w in sampled[i] if w >= 0), query.new_zeros(()))
        terms = [-(score(i, w).exp() / (score(i, w).exp() + outside)).log() for w in inside]
        losses.append(sum(terms, query.new_zeros(())) / max(len(inside), 1))
    return torch.stack(losses)


@pytest.mark.parametrize("tau", [1.0, 0.05])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("samples", [1, 13, 200])
def test_equation_7_and_its_gradient(tau: float, chunk: int, samples: int) -> None:
    query, embedding, words, bag = make()
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    mine, other = ([side.clone().requires_grad_() for side in (query, embedding)] for _ in range(2))
    with chunks(chunk):
        found = word_infonce(*mine, words, bag, tau, special=SPECIAL, samples=samples)
        (found.loss * weights).sum().backward()
    expected = formula(*other, words, bag, tau, found.sampled)
    torch.testing.assert_close(found.loss, expected, rtol=1e-11, atol=1e-13)
    (expected * weights).sum().backward()
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-12)
    assert other[1].grad.any(1).sum() > 20 and not mine[1].grad[SPECIAL].any()


def test_a_word_that_everybody_names() -> None:
    """With padding and frequent words, the gradient is the sum over all places; words that do not count add nothing."""
    query, (_, embedding, words, bag) = make(70)[0], make()
    words, bag = (side.repeat(10, 1) for side in (words, bag))  # more pairs than there are words
    common, padding, *_ = (word for word in range(61) if word not in {*words.flatten().tolist(), *SPECIAL.tolist()})
    words[:, 0], words[:, 5:] = common, padding
    bag[:, 5:] = False
    leaf, other = (embedding.clone().requires_grad_() for _ in range(2))
    found = word_infonce(query, leaf, words, bag, 0.5, special=SPECIAL, samples=2)
    found.loss.sum().backward()
    formula(query, other, words, bag, 0.5, found.sampled).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-9, atol=1e-12)
    named = {*words[bag].tolist(), *found.sampled.flatten().tolist()}
    assert {*leaf.grad.any(1).nonzero().flatten().tolist()} == named and padding not in named


def test_as_sharp_as_plain_torch_in_float32() -> None:
    query, embedding, words, bag = make(32, 400, 48, seed=1)
    torch.manual_seed(0)
    found = word_infonce(query.float(), embedding.float(), words, bag, 0.05, special=SPECIAL, samples=64)
    exact, plain = (formula(query.to(t), embedding.to(t), words, bag, 0.05, found.sampled) for t in (float64, float32))
    assert found.loss.dtype == float32
    assert (found.loss - exact).abs().max() <= (plain - exact).abs().max() + 2e-6


float32, float64 = torch.float32, torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_and_autocast(dtype: torch.dtype) -> None:
    query, embedding, words, bag = make()
    query, embedding = query.to(dtype).requires_grad_(), embedding.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = word_infonce(query, embedding, words, bag, 0.05, special=SPECIAL, samples=9)
    found.loss.sum().backward()
    exact = formula(query.double(), embedding.double(), words, bag, 0.05, found.sampled)
    torch.testing.assert_close(found.loss.double(), exact, rtol=1e-5, atol=1e-5)
    assert query.grad.dtype == dtype and embedding.grad.dtype == float32
    assert query.grad.any() and embedding.grad.isfinite().all()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("samples", [5, 1000])
def test_what_is_never_sampled(chunk: int, samples: int) -> None:
    query, embedding, words, bag = make()
    with chunks(chunk):
        for _ in range(20):
            sampled = word_infonce(query, embedding, words, bag, 0.05, special=SPECIAL, samples=samples).sampled
            for row, pair in zip(sampled.tolist(), words.tolist(), strict=True):
                drawn = [word for word in row if word >= 0]
                assert len(drawn) == len(set(drawn)) and not {*drawn} & {*pair, *SPECIAL.tolist()}
                everything = set(range(61)) - {*pair, *SPECIAL.tolist()}
                assert len(drawn) == 5 if samples == 5 else {*drawn} == everything


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


@pytest.mark.parametrize("threads", [module.FEW_THREADS, module.FEW_THREADS + 1])
@pytest.mark.parametrize(("columns", "samples"), [(12, 7), (56, 7), (320, 7), (321, 7), (4000, 700), (8000, 700)])
def test_the_largest_are_found_by_way_of_groups(
    columns: int, samples: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use the partition of NumPy, as with few threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    partition, found_by = module.np.argpartition, []
    monkeypatch.setattr(module.np, "argpartition", lambda *given, **how: found_by.append(1) or partition(*given, **how))
    keys = torch.randn(9, columns, generator=torch.Generator().manual_seed(0)).double()
    keys[0, 5:] = -torch.inf
    keys[1] = torch.arange(columns).double()  # adjacent in the order, and in different groups
    top, places = module._largest(keys, samples)
    assert torch.equal(keys.gather(1, places), top)
    assert torch.equal(top.sort(1).values, keys.topk(samples, dim=1).values.flip(1))
    assert all(len(set(row)) == samples for row in places.tolist())
    grouped = columns in (56, 320, 8000)
    assert len(found_by) == (1 + grouped if threads == module.FEW_THREADS else 0)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("chunk", [3 * 20_000, 10**6], ids=["chunks of 3 words", "one chunk"])
def test_words_are_drawn_with_their_probabilities(samples: int, chunk: int) -> None:
    """One of 9 words is special and one is in the bag; the other 7 have probabilities between 2% and 43%."""
    rows, tau = 20_000, 0.5
    embedding = make(1, 9, 4, seed=3)[1]
    embedding[0] = embedding[5]
    query = torch.tensor([[1.0, -2.0, 0.5, 1.0]], dtype=float64)
    words, bag = torch.tensor([[4]]), torch.tensor([[True]])
    torch.manual_seed(0)
    with chunks(chunk, cached=50_000):
        sampled = word_infonce(
            *(query.expand(rows, 4), embedding, words.expand(rows, 1), bag.expand(rows, 1), tau),
            special=torch.tensor([7]), samples=samples,
        ).sampled  # fmt: skip
    left = [word for word in range(9) if word not in (4, 7)]
    logits = torch.nn.functional.cosine_similarity(query, embedding[left]) / tau
    expected = torch.tensor(inclusion(logits.exp().tolist(), samples))
    share = torch.bincount(sampled.flatten(), minlength=9)[left] / rows
    deviation = (expected * (1 - expected) / rows).sqrt()
    assert expected.max() > 3 * expected.min() or samples == 3
    assert ((share - expected).abs() < 4.5 * deviation).all(), (share, expected)
    pairs = torch.tensor([len(set(row)) for row in sampled.tolist()])
    assert (pairs == samples).all()


@pytest.mark.parametrize("cached", [4000, 8000], ids=["row by row", "rows together"])
def test_every_query_and_every_call_draws_anew(cached: int) -> None:
    query, embedding, words, bag = make(2, 4000, 4)
    query, words, bag = query[:1].expand(2, 4), words[:1].expand(2, -1), bag[:1].expand(2, -1)
    torch.manual_seed(0)
    with chunks(10**6, cached=cached):
        found = [word_infonce(query, embedding, words, bag, 1.0, special=SPECIAL, samples=512) for _ in range(2)]
    calls = [call.sampled for call in found]
    drawn = [set(row.tolist()) for sampled in calls for row in sampled]
    for one, other in itertools.combinations(drawn, 2):
        assert 30 < len(one & other) < 130  # 512²/4000 = 66 if independent
    torch.manual_seed(0)
    again = word_infonce(query, embedding, words, bag, 1.0, special=SPECIAL, samples=512).sampled
    assert torch.equal(again.sort(1).values, calls[0].sort(1).values)


def test_correct_is_to_beat_every_sampled_word() -> None:
    embedding = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0], [2.0, 0.2]])
    words, bag = torch.tensor([[0, 2], [1, 2]]), torch.tensor([[True, True], [True, False]])
    found = word_infonce(torch.eye(2)[[0, 0]], embedding, words, bag, 1.0, special=torch.tensor([3]), samples=9)
    # Row 0: S = {1, 4} lies between words 0 and 2. Row 1: S = {0, 4}, and word 1 has the direction of 4: a tie.
    assert found.correct.tolist() == [[True, False], [False, False]]
    assert [sorted({*row} - {-1}) for row in found.sampled.tolist()] == [[1, 4], [0, 4]]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_of_nothing(chunk: int) -> None:
    query, embedding, words, bag = make()
    everything = torch.arange(61).expand(7, 61)
    none = torch.zeros_like(bag)
    with chunks(chunk):
        for given in (
            (query[:0], embedding, words[:0], bag[:0]),  # no pairs
            (query, embedding, words, none),  # no words to find
            (query, embedding, everything, torch.ones(7, 61, dtype=torch.bool)),  # no other words
        ):
            leaves = [side.clone().requires_grad_() for side in given[:2]]
            found = word_infonce(*leaves, *given[2:], 0.05, special=SPECIAL, samples=4)
            found.loss.sum().backward()
            assert isinstance(found, WordInfoNCE) and len(found.loss) == len(given[0]) and not found.loss.any()
            assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)
            assert found.correct.all() or not given[3].all()


def test_a_word_found_beyond_doubt_and_one_never() -> None:
    embedding = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=float64)
    words, bag = torch.tensor([[0], [1]]), torch.ones(2, 1, dtype=torch.bool)
    query = torch.tensor([[5.0, 0.0], [0.5, 0.0]], dtype=float64, requires_grad=True)
    found = word_infonce(query, embedding, words, bag, 1e-3, special=torch.tensor([2]), samples=1)
    losses = found.loss.tolist()
    assert losses[0] == 0 and losses[1] == pytest.approx(2000, rel=1e-12)
    found.loss.sum().backward()
    assert query.grad.isfinite().all() and math.isclose(float(query.grad[0].norm()), 0, abs_tol=1e-12)
