"""Masking: the tokens that are chosen (never special ones) and their replacements."""

import numpy as np
import pytest
import torch

from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch, Vocabulary, collate
from xrep.data.masking import mask_counts, mask_tokens

VOCABULARY = Vocabulary(size=1000, pad_id=7, unk_id=0, bos_id=2, eos_id=3, mask_id=999)
SPECIALS = [0, 2, 3, 7, 999]
NORMAL = np.setdiff1d(np.arange(1000), SPECIALS)


@pytest.fixture(scope="module")
def batch() -> TokenBatch:
    """Return a million tokens in sentences of 20 to 60 subwords, with unknown ones."""
    random = np.random.default_rng(1)
    sentences = [random.choice(NORMAL, random.integers(20, 61)) for _ in range(25_000)]
    for sentence in sentences[::10]:
        sentence[3] = VOCABULARY.unk_id
    return collate(sentences, VOCABULARY, 64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.15, 0.3125])
def test_a_million_tokens(batch: TokenBatch, rate: float) -> None:
    masked = mask_tokens(batch, VOCABULARY, rate, seeded(0))
    before, after = batch.tokens.flatten(), masked.batch.tokens.flatten()
    real = ~torch.isin(before, torch.tensor(SPECIALS))
    assert len(masked.labels) / real.sum().item() == pytest.approx(rate, abs=0.002)
    assert len(masked.labels) == int(mask_counts(batch, VOCABULARY, rate).sum())
    assert masked.labels.equal(before[masked.positions]) and masked.positions.diff().gt(0).all()
    rest = torch.ones_like(before, dtype=torch.bool).index_fill(0, masked.positions, False)
    assert after[rest].equal(before[rest]) and masked.batch.lengths.equal(batch.lengths)
    assert not torch.isin(masked.labels, torch.tensor(SPECIALS)).any()
    shown = after[masked.positions]
    hidden, same = shown == VOCABULARY.mask_id, shown == masked.labels
    assert hidden.double().mean().item() == pytest.approx(0.8, abs=0.005)
    assert same.double().mean().item() == pytest.approx(0.1, abs=0.005)
    replaced = shown[~hidden & ~same]
    counts = torch.bincount(replaced, minlength=1000)
    assert not counts[SPECIALS].any() and counts[NORMAL].min() > 0
    mean = len(replaced) / len(NORMAL)
    assert ((counts[NORMAL] - mean) ** 2 / mean).sum().item() == pytest.approx(len(NORMAL), rel=0.2)  # chi square


def test_every_place_is_as_likely(batch: TokenBatch) -> None:
    some = token_batch(batch.tokens[:1].repeat(20_000, 1), batch.lengths[:1].repeat(20_000))
    chosen = torch.bincount(mask_tokens(some, VOCABULARY, 0.15, seeded(1)).positions % some.tokens.size(1))
    real = ~torch.isin(batch.tokens[0], torch.tensor(SPECIALS))
    chosen = torch.nn.functional.pad(chosen, (0, len(real) - len(chosen)))
    share = mask_counts(some, VOCABULARY, 0.15)[0] / real.sum()
    assert not chosen[~real].any()
    assert (chosen[real] / 20_000 - share).abs().max() < 5 * (share / 20_000) ** 0.5


def test_counts() -> None:
    sentences = [np.arange(10, 10 + n) for n in (0, 1, 4, 10, 17, 20)] + [np.array([VOCABULARY.unk_id] * 5)]
    batch = collate(sentences, VOCABULARY, 64)
    assert mask_counts(batch, VOCABULARY, 0.15).tolist() == [0, 1, 1, 2, 3, 3, 0]
    parts = [mask_counts(batch.rows(0, 3), VOCABULARY, 0.15), mask_counts(batch.rows(3, 7), VOCABULARY, 0.15)]
    assert torch.cat(parts).equal(mask_counts(batch, VOCABULARY, 0.15))
    masked = mask_tokens(batch, VOCABULARY, 0.15, seeded(0))
    assert torch.bincount(masked.positions // batch.tokens.size(1), minlength=7).tolist() == [0, 1, 1, 2, 3, 3, 0]
    assert len(mask_tokens(batch.rows(0, 0), VOCABULARY, 0.15, seeded(0)).labels) == 0


def test_vectors_of_the_chosen(batch: TokenBatch) -> None:
    masked = mask_tokens(batch.rows(0, 9), VOCABULARY, 0.15, seeded(0))
    there = masked.to("meta")
    assert there.positions.is_meta and there.labels.is_meta and there.batch.tokens.is_meta
    states = masked.batch.tokens.unsqueeze(-1).double()
    assert masked.at_positions(states).squeeze(1).equal(states.flatten()[masked.positions])


def test_masks_depend_only_on_the_generator(batch: TokenBatch) -> None:
    """Torch's global random state neither matters nor changes."""
    some, found = batch.rows(0, 50), []
    for number, seed in ((3, 7), (4, 7), (3, 8)):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        found.append(mask_tokens(some, VOCABULARY, 0.25, seeded(seed)))
        assert torch.get_rng_state().equal(before)
    first, again, other = found
    assert first.positions.equal(again.positions) and first.batch.tokens.equal(again.batch.tokens)
    assert not torch.equal(first.positions, other.positions)
