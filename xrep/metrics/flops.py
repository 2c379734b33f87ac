"""Floating-point operations of a forward pass, two for a multiplication and its addition; matrix products alone."""

from __future__ import annotations

import numpy as np


def transformer_flops(lengths: np.ndarray, *, layers: int, hidden_size: int, feedforward_size: int) -> int:
    """Of transformer layers over sequences of ``lengths`` (int [B], in tokens), without padding.

    A token takes part in the four maps of attention and the two of the feed-forward network, a pair of tokens in a
    score and in an average.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    maps = 4 * hidden_size**2 + 2 * hidden_size * feedforward_size
    return int(2 * layers * (lengths.sum() * maps + (lengths**2).sum() * 2 * hidden_size))


def vocabulary_flops(tokens: int, *, hidden_size: int, words: int) -> int:
    """Of the scores of all ``words`` at some tokens."""
    return 2 * tokens * hidden_size * words
