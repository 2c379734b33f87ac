"""best_next and sample_next against log_softmax and sorting of all words, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xrep.kernels import next_tokens
from xrep.kernels.next_tokens import best_next, sample_next


def logits_of(rows: int, words: int, *, dtype: torch.dtype = torch.float64, spread: float = 3.0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, words, generator=generator, dtype=torch.float64) * spread).to(dtype)


def exact(logits: Tensor, count: int, never: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    follow = logits.double().log_softmax(1)
    allowed = follow.clone()
    allowed[:, list(never)] = -torch.inf
    return allowed.topk(count, dim=1).values, follow[:, list(never)]


@pytest.mark.slow
@settings(max_examples=100)
@given(
    rows=st.integers(1, 9),
    words=st.integers(1, 3000),
    count=st.integers(1, 20),
    block=st.sampled_from([1, 7, 16, 128]),
    never=st.lists(st.integers(0, 2999), max_size=5, unique=True),
    ruled_out=st.floats(0, 0.99),
    spread=st.sampled_from([0.01, 3.0, 100.0]),
    cached=st.sampled_from([1, 5000]),
    seed=st.integers(0, 5),
)
def test_best_tokens_are_those_of_a_sort(rows, words, count, block, never, ruled_out, spread, cached, seed) -> None:
    logits = logits_of(rows, words, spread=spread, seed=seed)
    hidden = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < ruled_out
    hidden[:, 0] = False
    logits = logits.masked_fill(hidden, -torch.inf)
    left, before = tuple(word for word in never if word < words), logits.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_tokens, "BLOCK", block)
        patch.setattr(next_tokens, "CACHED", cached)
        found = best_next(logits, count, never=left)
    assert torch.equal(before, logits)
    expected, aside = exact(logits, min(count, words), left)
    torch.testing.assert_close(found.log_probabilities, expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found.never, aside, atol=1e-10, rtol=1e-10)
    real = found.log_probabilities > -torch.inf
    at = logits.log_softmax(1).gather(1, found.tokens)
    torch.testing.assert_close(at[real], found.log_probabilities[real], atol=1e-10, rtol=1e-10)
    for row, tokens in enumerate(found.tokens):
        chosen = tokens[real[row]].tolist()
        assert len(set(chosen)) == len(chosen) and not set(chosen) & set(left)


@pytest.mark.parametrize("words, spread", [(16_000, 1000.0), (16_001, 3.0), (8_191, 3.0)])
def test_float32_is_no_worse_than_torch(words: int, spread: float) -> None:
    logits = logits_of(160, words, dtype=torch.float32, spread=spread)
    expected, ours = exact(logits, 10)[0], best_next(logits, 10).log_probabilities
    theirs = logits.log_softmax(1).topk(10, dim=1).values
    assert ours.dtype == torch.float32
    assert (ours - expected).abs().max() <= (theirs - expected).abs().max() + 1e-6 * spread


def test_ties_fall_the_same_way_each_time() -> None:
    logits = torch.zeros(3, 5000)
    logits[:, ::7] = 1.0
    found, again = (best_next(logits, 12, never=(0, 7)).tokens for _ in range(2))
    assert torch.equal(found, again)
    assert (found % 7 == 0).all() and all(len(set(row)) == 12 for row in found.tolist())


def test_banned_words_of_a_row_keep_their_share() -> None:
    logits = logits_of(4, 4000)
    best = best_next(logits, 3)
    banned = torch.tensor([1, 1, 3]), torch.stack([best.tokens[1, 0], best.tokens[1, 2], best.tokens[3, 1]])
    found = best_next(logits, 3, banned=banned)
    allowed = logits.log_softmax(1).index_put(banned, torch.tensor(-torch.inf, dtype=torch.float64))
    torch.testing.assert_close(found.log_probabilities, allowed.topk(3, dim=1).values)
    assert torch.equal(found.tokens[0], best.tokens[0]) and found.tokens[1, 0] == best.tokens[1, 1]


def test_more_words_than_there_are() -> None:
    found = best_next(torch.tensor([[1.0, 2.0, 3.0]]), 10, never=(1,))
    assert found.tokens[0, :2].tolist() == [2, 0]
    assert found.log_probabilities[0].exp().tolist() == pytest.approx([0.66524096, 0.09003057, 0.0])
    with pytest.raises(ValueError, match=r"logits must be \[R, V\], not \[3\]"):
        best_next(torch.zeros(3), 2)


def shares(logits: Tensor, never: tuple[int, ...], top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0):
    """Return the probabilities of one row of logits [V], as the papers define them."""
    logits = logits.double() / temperature
    logits[list(never)] = -torch.inf
    if top_k:
        logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
    probabilities, order = logits.softmax(0).sort(descending=True)
    kept = probabilities.cumsum(0) - probabilities < top_p
    found = torch.zeros_like(logits).index_put((order[kept],), probabilities[kept])
    return found / found.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}, {"top_p": 0.97, "temperature": 2.0},
     {"top_k": 6, "top_p": 0.8, "temperature": 1.3}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("words", [12, 1500])
def test_what_is_drawn_has_the_distribution_of_the_model(asked: dict[str, float], words: int) -> None:
    """Equally spaced uniform numbers must draw each word as often as its probability says, to within one."""
    draws, never = 6_000, (0, 3)
    row = logits_of(1, words, dtype=torch.float32, spread=2.0, seed=4)
    follow, drawn = row.double().log_softmax(1)[0], []
    for some in ((torch.arange(draws, dtype=torch.float64) + 0.5) / draws).split(2000):
        found = sample_next(row.expand(len(some), -1), some, never=never, **asked)
        drawn.append(found.tokens)
        assert torch.allclose(found.log_probabilities[:, 0].double(), follow[found.tokens[:, 0]], atol=1e-5)
        assert torch.allclose(found.never.double(), follow[list(never)].expand(len(some), -1), atol=1e-5)
    counts, expected = torch.cat(drawn).flatten().bincount(minlength=words), shares(row[0], never, **asked)
    assert (counts - draws * expected).abs().max() <= 1.01
    assert not counts[expected == 0].any()


def test_a_banned_word_is_not_drawn() -> None:
    logits = torch.zeros(50, 4).index_put((torch.arange(50), torch.full((50,), 2)), torch.tensor(30.0))
    rows = torch.arange(0, 50, 2)
    found = sample_next(logits, torch.rand(50).double(), banned=(rows, torch.full_like(rows, 2)))
    assert (found.tokens[1::2] == 2).all() and (found.tokens[::2] != 2).all()


def test_extreme_numbers_draw_words_that_may_be_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).expand(2, -1)
    uniforms = torch.tensor([0.0, 1 - 2.0**-32], dtype=torch.float64)
    assert sample_next(logits, uniforms).tokens.flatten().tolist() == [1, 2]
    assert sample_next(logits, uniforms, top_k=3).tokens.flatten().sort().values.tolist() == [1, 2]
