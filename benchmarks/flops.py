"""Floating-point operations of a forward pass, counting only matrix products: two per multiply-add."""

from __future__ import annotations

import numpy as np


def transformer_flops(lengths: np.ndarray, *, layers: int, hidden_size: int, feedforward_size: int) -> int:
    """Return the operations of transformer layers on sequences of ``lengths`` (int [B], in tokens), without padding.

    Each token goes through the four linear maps of attention and the two of the feed-forward network. Each pair of
    tokens takes part in an attention score and in a weighted average.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    maps = 4 * hidden_size**2 + 2 * hidden_size * feedforward_size
    return int(2 * layers * (lengths.sum() * maps + (lengths**2).sum() * 2 * hidden_size))


def vocabulary_flops(tokens: int, *, hidden_size: int, words: int) -> int:
    """Return the operations of scoring all ``words`` of the vocabulary for each of ``tokens`` tokens."""
    return 2 * tokens * hidden_size * words
