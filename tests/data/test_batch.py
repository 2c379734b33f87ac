"""Collation by hand."""

import dataclasses

import numpy as np
import torch

from xrep.data.batch import Vocabulary, collate

VOCABULARY = Vocabulary(size=20, pad_id=9, unk_id=0, bos_id=1, eos_id=2, mask_id=None)


def test_collate_pads_and_cuts() -> None:
    sentences = [np.array([11, 12], dtype=np.uint16), np.array([], dtype=np.uint16), np.arange(10, 19, dtype=np.uint16)]
    batch = collate(sentences, VOCABULARY, 6)
    assert batch.tokens.dtype == batch.lengths.dtype == torch.int64
    assert batch.tokens.tolist() == [[1, 11, 12, 2, 9, 9], [1, 2, 9, 9, 9, 9], [1, 10, 11, 12, 13, 2]]
    assert batch.lengths.tolist() == [4, 2, 6] and len(batch) == 3 and batch.is_padded
    assert batch.mask.tolist() == [[True] * 4 + [False] * 2, [True] * 2 + [False] * 4, [True] * 6]
    assert not collate(sentences[2:], VOCABULARY, 6).is_padded
    nothing = collate([], VOCABULARY, 6)
    assert nothing.tokens.shape == (0, 2) and nothing.lengths.shape == (0,) and not nothing.is_padded
    assert nothing.tokens.dtype == nothing.lengths.dtype == torch.int64


def test_a_vocabulary_without_bos() -> None:
    vocabulary = dataclasses.replace(VOCABULARY, bos_id=None)
    batch = collate([np.array([11, 12]), np.array([], dtype=np.int64), np.arange(10, 19)], vocabulary, 4)
    assert batch.tokens.tolist() == [[11, 12, 2, 9], [2, 9, 9, 9], [10, 11, 12, 2]]
    assert batch.lengths.tolist() == [3, 1, 4]
    assert collate([], vocabulary, 6).tokens.shape == (0, 1)


def test_followed_by() -> None:
    short, long = (collate([np.arange(10, 10 + n)], VOCABULARY, 6) for n in (1, 3))
    for both, rows in ((short.followed_by(long, 9), [0, 1]), (long.followed_by(short, 9), [1, 0])):
        expected = [[[1, 10, 2, 9, 9], [1, 10, 11, 12, 2]][row] for row in rows]
        assert both.tokens.tolist() == expected and both.lengths.tolist() == [[3, 5][row] for row in rows]
