"""Passages of documents: consecutive sentences that are joined up to a number of tokens."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from xrep.data.text_table import SentenceRows, join_sentences
from xrep.text.cleaning import NO_KEY


def sentences_of(documents: list[list[int]], size: int) -> Iterator[SentenceRows]:
    """Yield documents, given by the lengths of their sentences, in chunks; token i of the text is the number i, and
    sentence i has the hash i + 1."""
    lengths = [length for document in documents for length in document]
    ends = list(itertools.accumulate(lengths))
    ids = [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
    follows = np.array([place > 0 for document in documents for place in range(len(document))], dtype=bool)
    hashes = np.arange(1, len(ids) + 1, dtype=np.uint64)
    for start in range(0, len(ids), size):
        some = slice(start, start + size)
        yield SentenceRows(ids[some], hashes[some], follows[some])


def whole(chunks: Iterator[SentenceRows]) -> SentenceRows:
    ids, hashes, follows = [], [np.empty(0, np.uint64)], [np.empty(0, bool)]
    for chunk in chunks:
        ids += chunk.ids
        hashes.append(chunk.hashes)
        follows.append(chunk.follows)
    return SentenceRows(ids, np.concatenate(hashes), np.concatenate(follows))


def plainly(documents: list[list[int]], most: int) -> tuple[list[int], list[bool]]:
    """Return the lengths of the passages, and which of them go on with the document of the one before."""
    lengths, follows = [], []
    for document in documents:
        own: list[int] = []
        for sentence in document:
            if own and own[-1] + sentence <= most:
                own[-1] += sentence
            else:
                own.append(sentence)
        follows += [place > 0 for place in range(len(own))]
        lengths += own
    return lengths, follows


@pytest.mark.parametrize("most", [1, 5, 12, 1000])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_passages_are_those_of_a_plain_loop(most: int, size: int) -> None:
    draw = np.random.default_rng(most)
    documents = [draw.integers(1, 9, draw.integers(1, 15)).tolist() for _ in range(40)]
    found = whole(join_sentences(sentences_of(documents, size), most))
    lengths, follows = plainly(documents, most)
    assert list(map(len, found.ids)) == lengths and found.follows.tolist() == follows
    assert list(itertools.chain.from_iterable(found.ids)) == list(range(sum(map(sum, documents))))
    assert found.hashes.tolist() == whole(join_sentences(sentences_of(documents, 1000), most)).hashes.tolist()
    if most == 1:
        assert found.hashes.tolist() == list(range(1, len(lengths) + 1))
    assert not list(join_sentences(sentences_of([], size), most))


def test_only_equal_passages_have_equal_hashes() -> None:
    """The hash of a passage depends on the order of its sentences, and on how often each occurs."""
    a, b, wordless = 5, 6, NO_KEY
    passages = [[a, b, a], [b], [a, a], [b, b], [a, b], [b, a], [a, b], [b, wordless], [wordless, b], [a, wordless, b]]
    passages += [[a, b, b, a], [wordless, wordless], [wordless], [a] * 4, [b] * 4]
    (given,) = sentences_of([[1] * len(passage) for passage in passages], 1000)
    given = given._replace(hashes=np.array(sum(passages, []), dtype=np.uint64))
    hashes = whole(join_sentences(iter([given]), 1000)).hashes.tolist()
    words = [tuple(sentence for sentence in passage if sentence != wordless) for passage in passages]
    for one, mine in zip(words, hashes, strict=True):
        assert [own for own, other in zip(words, hashes, strict=True) if other == mine] == [one] * words.count(one)
    assert hashes[words.index((b,))] == b and hashes[words.index(())] == NO_KEY
