"""Masking for masked language modelling: choose tokens, hide them, and keep them as labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xrep.data.batch import Movable, TokenBatch, Vocabulary

MASKED, REPLACED = 0.8, 0.1
"""Shares of the chosen tokens replaced by [MASK] and by a random subword; the rest stay (Devlin et al., 2019)."""


@dataclass
class Masked(Movable):
    """A batch with some tokens hidden.

    Attributes:
        batch: The batch with hidden tokens, which the encoder reads.
        positions: int64 [M], positions of the chosen tokens in the flattened batch [B * T], in increasing order.
        labels: int64 [M], the original tokens at these positions.
    """

    batch: TokenBatch
    positions: Tensor
    labels: Tensor

    def at_positions(self, tokens: Tensor) -> Tensor:
        """Return the vectors of the chosen tokens: [B, T, H] -> [M, H]."""
        return tokens.flatten(0, 1).index_select(0, self.positions)


def mask_counts(batch: TokenBatch, vocabulary: Vocabulary, rate: float) -> Tensor:
    """Return how many tokens of each row are chosen, int64 [B].

    This is ``rate`` times the number of maskable tokens, rounded, but at least one if the row has any.
    """
    counts = maskable(batch, vocabulary).sum(dim=1)
    return (counts * rate).round().long().clamp(min=1).minimum(counts)


def maskable(batch: TokenBatch, vocabulary: Vocabulary) -> Tensor:
    """Return which tokens may be masked, bool [B, T]: all but padding and special tokens, including unknown words."""
    mask = batch.mask
    for special in vocabulary.special_ids:
        mask = mask & (batch.tokens != special)
    return mask


def mask_tokens(
    batch: TokenBatch,
    vocabulary: Vocabulary,
    rate: float,
    generator: torch.Generator,
) -> Masked:
    """Choose ``mask_counts`` tokens of each row; replace 80% by [MASK], 10% by a random subword and keep 10%.

    Args:
        batch: Sentences in host memory.
        rate: Share of the maskable tokens of each row to choose.
        generator: Source of the random numbers.
    """
    assert vocabulary.mask_id is not None
    allowed, counts = maskable(batch, vocabulary), mask_counts(batch, vocabulary, rate)
    chosen = _ranks(torch.rand(allowed.shape, generator=generator), allowed) < counts.unsqueeze(1)
    positions = (chosen & allowed).flatten().nonzero().squeeze(1)
    labels = batch.tokens.flatten().index_select(0, positions)
    fate = torch.rand(labels.shape, generator=generator)
    shown = torch.where(fate < MASKED + REPLACED, _random_subwords(labels, vocabulary, generator), labels)
    shown = torch.where(fate < MASKED, vocabulary.mask_id, shown)
    tokens = batch.tokens.flatten().index_copy(0, positions, shown).view_as(batch.tokens)
    return Masked(TokenBatch(tokens, batch.lengths, batch.host_lengths), positions, labels)


def _ranks(keys: Tensor, allowed: Tensor) -> Tensor:
    """Return the rank of each element in its row, by increasing key; elements that are not allowed come last."""
    return keys.masked_fill(~allowed, 2.0).argsort(dim=1).argsort(dim=1)


def _random_subwords(like: Tensor, vocabulary: Vocabulary, generator: torch.Generator) -> Tensor:
    """Draw subwords uniformly from those that are not special."""
    specials = vocabulary.special_ids
    drawn = torch.randint(vocabulary.size - len(specials), like.shape, generator=generator)
    for special in specials:  # in increasing order, so that each step skips one special id
        drawn = drawn + (drawn >= special)
    return drawn
