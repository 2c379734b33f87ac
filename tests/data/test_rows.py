"""Rows of annotated text: what is read, where the labels stand, and what is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xrep.data.batch import Vocabulary
from xrep.data.rows import (
    IGNORED,
    Reading,
    batch_of_rows,
    cut_lengths,
    label_rows,
    question_rows,
    table_of_rows,
    tag_rows,
)
from xrep.errors import UserError
from xrep.text.annotated import Answer, Question, TaggedSentence
from xrep.text.examples import Example
from xrep.text.tokenizer import Tokenizer
from xrep.text.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer)


def text(*sentences: str) -> Example:
    return Example(sentences, ("de",))


def test_a_pair_is_one_sequence(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    one, two = tokenizer.encode(["der Koch", "the cook"])
    both = [text("der Koch"), text("der Koch", "the cook")]
    (single, pair) = label_rows(both, Reading(tokenizer, vocabulary, 64), lambda _: [7])
    assert single.ids == [vocabulary.bos_id, *one, vocabulary.eos_id] and single.first == len(single.ids)
    assert pair.ids == [*single.ids, vocabulary.eos_id, *two, vocabulary.eos_id] and pair.first == len(single.ids) + 1
    assert single.labels == pair.labels == [7] and (single.example, pair.example) == (0, 1)
    batch = batch_of_rows(table_of_rows("label", [single, pair], vocabulary), np.array([1, 0]), vocabulary)
    assert batch.labels.tolist() == [7, 7] and batch.indices.tolist() == [1, 0]
    types = batch.tokens.types
    assert types is not None and types[0].sum() == len(two) + 1 and types[1].sum() == 0
    assert batch.rows(1, 2).tokens.tokens.shape == (1, len(single.ids))
    alone = table_of_rows("label", [single], vocabulary)
    assert batch_of_rows(alone, np.array([0]), vocabulary).tokens.types is None


@pytest.mark.slow
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50))
def test_the_longer_sentence_is_cut_first(first: int, second: int, room: int) -> None:
    """Tokens are taken one at a time from the longer sentence, and from the second if both are equally long."""
    expected = [first, second]
    while sum(expected) > room:
        expected[0 if expected[0] > expected[1] else 1] -= 1
    assert list(cut_lengths(first, second, room)) == expected


def test_words_carry_their_tags(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    words = ("der", "Bäckermeister", "singt", "\u200b") * 9
    sentence = TaggedSentence(words, words, "de", Path(), 1)
    rows = list(tag_rows([sentence], Reading(tokenizer, vocabulary, 20), lambda s: range(len(s.words))))
    assert len(rows) > 1 and all(len(row.ids) == len(row.labels) <= 20 for row in rows)
    assert [tag for row in rows for tag in row.labels if tag != IGNORED] == list(range(len(words)))
    for row in rows:
        assert row.ids[0] == vocabulary.bos_id and row.ids[-1] == vocabulary.eos_id
        assert row.labels[0] == row.labels[-1] == IGNORED
    batch = batch_of_rows(table_of_rows("tags", rows, vocabulary), np.arange(len(rows)), vocabulary)
    assert batch.labels.shape == batch.tokens.tokens.shape


def test_a_space_does_not_stand_for_a_word(tmp_path: Path) -> None:
    """SentencePiece encodes words of Chinese as a space and their characters, unless the space is left out."""
    sentences = ["他说中国的经济增长了", "中国说他的经济增长", "the economy grows", "he says that it grows"] * 8
    tokenizer = train_tokenizer(sentences, 32, tmp_path)
    words = ("中国", "经济", "的", "grows")
    pieces = tokenizer.encode([f" {word}" for word in words])
    spaces = [not tokenizer.decode(ids[:1]).strip() for ids in pieces]
    assert spaces[0]
    sentence = TaggedSentence(words, words, "zh", Path(), 1)
    reading = Reading(tokenizer, Vocabulary.of(tokenizer), 64)
    (row,) = tag_rows([sentence], reading, lambda s: range(len(s.words)))
    assert row.ids[1:-1] == [token for ids, space in zip(pieces, spaces, strict=True) for token in ids[space:]]
    first = [ids[space] for ids, space in zip(pieces, spaces, strict=True)]
    assert [token for token, tag in zip(row.ids, row.labels, strict=True) if tag != IGNORED] == first


def test_every_window_knows_its_answer(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    context = "der Koch singt im Haus. " * 8 + "die Ärztin wohnt in Köln. " + "der Maler lacht laut. " * 8
    question = Question("1", "wo?", context, (Answer("Köln", context.index("Köln")),), "de")
    rows = list(question_rows([question], Reading(tokenizer, vocabulary, 40), stride=9, max_question=5))
    with_answer = [row for row in rows if row.labels != [0, 0]]
    assert len(rows) > 5 and with_answer and len(with_answer) < len(rows)
    covered = set[int]()
    for row in rows:
        assert len(row.ids) <= 40 and len(row.ids) == row.first + len(row.spans) + 1
        for start, end in row.spans:
            covered |= set(range(start, end))
    assert covered >= {place for place, character in enumerate(context) if not character.isspace()}
    for row in with_answer:
        begin, end = (row.spans[place - row.first] for place in row.labels)
        assert "Köln" in context[begin[0] : end[1]] and len(context[begin[0] : end[1]].strip()) <= len("Köln.")


def test_a_question_without_room_is_refused(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    question = Question("1", "wo ist der Bäcker und der Koch und die Katze?", "hier", (), "de")
    with pytest.raises(UserError, match="no room for a context beside a question of"):
        list(question_rows([question], Reading(tokenizer, vocabulary, 12), stride=3, max_question=64))


def test_a_context_of_spaces_has_no_answer(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    question = Question("1", "wo?", "   ", (), "de")
    (row,) = question_rows([question], Reading(tokenizer, vocabulary, 20), stride=5, max_question=9)
    assert row.labels == [0, 0] and not row.spans
