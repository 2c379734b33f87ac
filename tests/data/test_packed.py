"""Passages of documents: consecutive sentences that are joined up to a number of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from xrep.data.store import Corpus, TokenColumn
from xrep.data.text_store import packed
from xrep.text.cleaning import NO_KEY


def corpus_of(documents: list[list[int]]) -> Corpus:
    """Return documents, given by the lengths of their sentences; token i of the text is the number i."""
    lengths = np.array([length for document in documents for length in document], dtype=np.int64)
    rows, followed = 0, []
    for document in documents:
        followed += range(rows, rows + len(document) - 1)
        rows += len(document)
    offsets = np.append(0, np.cumsum(lengths))
    column = TokenColumn(np.arange(offsets[-1], dtype=np.uint32), offsets)
    hashes = np.arange(1, rows + 1, dtype=np.uint64)[:, None]
    return Corpus(("en",), (column,), {"hashes": hashes, "followed": np.array(followed, dtype=np.int64)})


def plainly(documents: list[list[int]], most: int) -> tuple[list[int], list[int]]:
    """Return the lengths of the passages, and which of them are followed by another of their document."""
    lengths, followed = [], []
    for document in documents:
        own: list[int] = []
        for sentence in document:
            if own and own[-1] + sentence <= most:
                own[-1] += sentence
            else:
                own.append(sentence)
        followed += range(len(lengths), len(lengths) + len(own) - 1)
        lengths += own
    return lengths, followed


@pytest.mark.parametrize("most", [1, 5, 12, 1000])
def test_passages_are_those_of_a_plain_loop(most: int) -> None:
    draw = np.random.default_rng(most)
    documents = [draw.integers(1, 9, draw.integers(1, 15)).tolist() for _ in range(40)]
    found = packed(corpus_of(documents), most)
    lengths, followed = plainly(documents, most)
    assert found.source.lengths(np.arange(len(found))).tolist() == lengths
    assert found.arrays["followed"].tolist() == followed and len(found.hashes) == len(found)
    text = np.concatenate([found.source[row] for row in range(len(found))])
    assert text.tolist() == list(range(sum(map(sum, documents))))
    if most == 1:
        assert found.hashes.tolist() == corpus_of(documents).hashes.tolist()
    with pytest.raises(IndexError):
        found.source[len(found)]
    assert len(packed(corpus_of([]), most)) == 0


def test_only_equal_passages_have_equal_hashes() -> None:
    """The hash of a passage depends on the order of its sentences, and on how often each occurs."""
    a, b, wordless = 5, 6, NO_KEY
    passages = [[a, b, a], [b], [a, a], [b, b], [a, b], [b, a], [a, b], [b, wordless], [wordless, b], [a, wordless, b]]
    passages += [[a, b, b, a], [wordless, wordless], [wordless], [a] * 4, [b] * 4]
    corpus = corpus_of([[1] * len(passage) for passage in passages * 600])
    corpus.arrays["hashes"][:, 0] = sum(passages, []) * 600
    many = packed(corpus, 1000).hashes.reshape(600, len(passages))
    assert (many == many[0]).all()
    hashes = many[0].tolist()
    words = [tuple(sentence for sentence in passage if sentence != wordless) for passage in passages]
    for one, mine in zip(words, hashes, strict=True):
        assert [own for own, other in zip(words, hashes, strict=True) if other == mine] == [one] * words.count(one)
    assert hashes[words.index((b,))] == b and hashes[words.index(())] == NO_KEY
