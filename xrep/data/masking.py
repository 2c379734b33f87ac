"""Tokens hidden from an encoder that has to find them again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xrep.data.batching import TokenBatch, Vocabulary

MASKED, REPLACED = 0.8, 0.1
"""Shares of the chosen tokens that become [MASK] and a random subword; the rest stay (Devlin et al., 2019)."""


@dataclass
class Masked:
    """A batch with some tokens hidden.

    Attributes:
        batch: what the encoder reads.
        positions: int64 [M], the places of the chosen tokens in the flattened batch [B * T], rising.
        labels: int64 [M], what stood there.
    """

    batch: TokenBatch
    positions: Tensor
    labels: Tensor

    def at_positions(self, tokens: Tensor) -> Tensor:
        """The vectors of the chosen tokens: [B, T, H] -> [M, H]."""
        return tokens.flatten(0, 1).index_select(0, self.positions)


def mask_counts(batch: TokenBatch, vocabulary: Vocabulary, rate: float) -> Tensor:
    """How many tokens of each row are chosen, int64 [B]: ``rate`` of those that are not special, rounded, at least one.

    It is told by the batch alone, so that a criterion knows its sizes before it draws.
    """
    counts = maskable(batch, vocabulary).sum(dim=1)
    return (counts * rate).round().long().clamp(min=1).minimum(counts)


def maskable(batch: TokenBatch, vocabulary: Vocabulary) -> Tensor:
    """bool [B, T]: real tokens that are not special; an unknown word is not worth finding."""
    specials = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.mask_id)
    mask = batch.mask
    for special in specials:
        if special is not None:
            mask = mask & (batch.tokens != special)
    return mask


def mask_tokens(batch: TokenBatch, vocabulary: Vocabulary, rate: float, begins_word: Tensor | None = None) -> Masked:
    """Choose ``mask_counts`` tokens of each row and hide them: 80% as [MASK], 10% as a random subword, 10% not at all.

    Draws come from torch's default generator of the batch's device, whose state is part of a checkpoint.

    Args:
        begins_word: bool [vocabulary.size], whether a subword begins a word: then whole words are chosen, in random
            order as long as they fit into the row's count, so there may be fewer tokens than that. None: any tokens.

    Raises:
        ValueError: the vocabulary has no [MASK].
    """
    if vocabulary.mask_id is None:
        raise ValueError("the vocabulary has no [MASK]")
    allowed, counts = maskable(batch, vocabulary), mask_counts(batch, vocabulary, rate)
    if begins_word is None:
        chosen = _ranks(torch.rand(allowed.shape, device=allowed.device), allowed) < counts.unsqueeze(1)
    else:
        chosen = _whole_words(begins_word[batch.tokens] | ~allowed, allowed, counts)
    positions = (chosen & allowed).flatten().nonzero().squeeze(1)
    labels = batch.tokens.flatten().index_select(0, positions)
    fate = torch.rand(labels.shape, device=labels.device)
    shown = torch.where(fate < MASKED + REPLACED, _random_subwords(labels, vocabulary), labels)
    shown = torch.where(fate < MASKED, vocabulary.mask_id, shown)
    tokens = batch.tokens.flatten().index_copy(0, positions, shown).view_as(batch.tokens)
    hidden = TokenBatch(tokens, batch.lengths)
    hidden.real_tokens = batch.real_tokens
    return Masked(hidden, positions, labels)


def _ranks(keys: Tensor, allowed: Tensor) -> Tensor:
    """Place of each element among the allowed ones of its row by rising key; those not allowed come last."""
    return keys.masked_fill(~allowed, 2.0).argsort(dim=1).argsort(dim=1)


def _whole_words(begins: Tensor, allowed: Tensor, counts: Tensor) -> Tensor:
    """bool [B, T]: tokens of words drawn in random order while they fit into ``counts``."""
    word = begins.long().cumsum(dim=1)
    words = allowed.size(1) + 1
    sizes = torch.zeros(len(word), words, dtype=torch.int64, device=word.device)
    sizes.scatter_add_(1, word, allowed.long())
    order = torch.rand(sizes.shape, device=word.device).masked_fill(sizes == 0, 2.0).argsort(dim=1)
    taken, left = torch.zeros_like(sizes, dtype=torch.bool), counts.clone()
    for place in range(words):
        some = order[:, place : place + 1]
        size = sizes.gather(1, some).squeeze(1)
        fits = (size > 0) & (size <= left)
        taken.scatter_(1, some, fits.unsqueeze(1))
        left -= size * fits
    return taken.gather(1, word)


def _random_subwords(like: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Subwords drawn evenly from those that are not special."""
    specials = sorted(
        {vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.mask_id} - {None}
    )
    drawn = torch.randint(vocabulary.size - len(specials), like.shape, device=like.device)
    for special in specials:  # rising: each makes room for itself
        drawn = drawn + (drawn >= special)
    return drawn
