"""Rows of annotated text: the sequences of tokens that a classifier reads, and what it is to predict of them.

A row is a text or a pair ([CLS] x [SEP] y [SEP]), the words of a sentence, or a question and a window of its context.
An example has several rows where it is longer than a sequence may be: a long sentence of words is divided between
words, and the context of a question into overlapping windows.

The table of a split (``row_schema``) has the columns ``ids`` (tokens, special tokens included), ``labels``, ``first``
and ``example``, as ``Row`` has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from xrep.data.batch import Batch, TokenBatch, Vocabulary
from xrep.data.build import chunks
from xrep.data.table import ColumnType, Schema, Table, flatten, token_type
from xrep.errors import UserError
from xrep.text.annotated import Question, TaggedSentence
from xrep.text.examples import Example
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer

IGNORED = -100
"""Label of tokens whose label is not predicted."""
_LABELS = {"label": ColumnType("<i4"), "tags": ColumnType("<i4", ragged=True), "span": ColumnType("<i4", 2)}


class Row(NamedTuple):
    """A sequence of tokens.

    Attributes:
        ids: Token ids, special tokens included.
        first: Number of tokens of the first of two sentences, with the special tokens around it.
        labels: The class of the text; or for each token the number of its tag (IGNORED where a word does not begin);
            or the first and the last token of the answer (the first token of the row twice, if it has none).
        example: Number of the example that the row belongs to.
        spans: Of the tokens of a context, the characters (start, end) that they stand for; the first of these tokens
            has the place ``first``.
    """

    ids: Sequence[int]
    first: int
    labels: Sequence[int]
    example: int
    spans: Sequence[tuple[int, int]] = ()


class Reading(NamedTuple):
    """How text is read: the tokenizer, its special ids, and how long a row may be."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    max_length: int


def row_schema(kind: Literal["label", "tags", "span"], vocabulary_size: int) -> Schema:
    """Return the columns of a table of rows. ``kind`` is that of the annotation, which decides the type of ``labels``:
    a number, a number for each token, or two numbers."""
    fixed = ColumnType("<u4")
    return {"ids": token_type(vocabulary_size), "labels": _LABELS[kind], "first": fixed, "example": fixed}


def row_columns(rows: Iterable[Row], schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the columns of some thousand rows at a time, as ``TableWriter.append`` takes them."""
    kind = schema["labels"]
    for chunk in chunks(rows):
        ids = flatten([row.ids for row in chunk])
        labels: Any = np.fromiter(chain.from_iterable(row.labels for row in chunk), np.int32)
        if kind.ragged:
            labels = labels, ids[1]
        elif kind.width > 1:
            labels = labels.reshape(-1, kind.width)
        fixed = {name: np.array([getattr(row, name) for row in chunk]) for name in ("first", "example")}
        yield {"ids": ids, "labels": labels, **fixed}


def sequence(first: Sequence[int], second: Sequence[int] | None, reading: Reading) -> tuple[list[int], int]:
    """Return [CLS] x [SEP], or [CLS] x [SEP] y [SEP], and the number of tokens up to y (all, if there is none).

    If it is too long, tokens at the end of the longer sentence are left out one by one, as transformers does.
    """
    vocabulary, max_length = reading.vocabulary, reading.max_length
    begin = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    separators = [vocabulary.eos_id] * (1 if second is None else vocabulary.pair_separators)
    room = max_length - len(begin) - len(separators) - (second is not None)
    sizes = cut_lengths(len(first), 0 if second is None else len(second), room)
    ids = [*begin, *first[: sizes[0]], *separators]
    return (ids, len(ids)) if second is None else ([*ids, *second[: sizes[1]], vocabulary.eos_id], len(ids))


def cut_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two sentences that together have at most ``room`` tokens.

    Tokens are taken from the longer one until both are equally long, and then in turns, beginning with the second.
    """
    excess = max(0, first + second - max(room, 0))
    difference = min(excess, abs(first - second))
    first, second = (first - difference, second) if first > second else (first, second - difference)
    rest = excess - difference
    return first - rest // 2, second - (rest + 1) // 2


def label_rows(
    texts: Iterable[Example], reading: Reading, numbers_of: Callable[[Example], Sequence[int]]
) -> Iterator[Row]:
    """Yield a row for each text.

    Args:
        numbers_of: Function that returns the class of an example, as the only number.
    """
    for chunk in chunks(enumerate(texts)):
        widest = max(len(example.sentences) for _, example in chunk)
        columns = [reading.tokenizer.encode([(*e.sentences, "")[column] for _, e in chunk]) for column in range(widest)]
        for place, (number, example) in enumerate(chunk):
            second = columns[1][place] if len(example.sentences) == 2 else None
            ids, first = sequence(columns[0][place], second, reading)
            yield Row(ids, first, numbers_of(example), number)


def tag_rows(
    sentences: Iterable[TaggedSentence], reading: Reading, numbers_of: Callable[[TaggedSentence], Sequence[int]]
) -> Iterator[Row]:
    """Yield the rows of each sentence. The first subword of a word has its tag.

    Every word is encoded alone, as the beginning of a word. A subword that is nothing but the space before a word is
    left out: SentencePiece has it before nearly all words of Chinese, which are written without spaces, and it is the
    same for all of them. A sentence that is too long is divided between words, and a word without subwords is an
    unknown one, so that every word has a tag.

    Args:
        numbers_of: Function that returns the numbers of the tags of a sentence.
    """
    tokenizer, vocabulary, max_length = reading
    is_space = functools.cache(lambda token: not tokenizer.decode([token]).strip())
    room = max_length - vocabulary.special_count
    for chunk in chunks(enumerate(sentences)):
        unique = dict.fromkeys(word for _, sentence in chunk for word in sentence.words)
        encoded = tokenizer.encode([f" {word}" for word in unique])
        visible = [ids[1:] if len(ids) > 1 and is_space(ids[0]) else ids for ids in encoded]
        subwords = {word: (ids or [vocabulary.unk_id])[:room] for word, ids in zip(unique, visible, strict=True)}
        for number, sentence in chunk:
            words = [subwords[word] for word in sentence.words]
            for ids, tags in _divided(words, numbers_of(sentence), room):
                whole, first = sequence(ids, None, reading)
                yield Row(whole, first, [*[IGNORED] * vocabulary.leading_count, *tags, IGNORED], number)


def _divided(words: list[list[int]], tags: Sequence[int], room: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the subwords of as many words as there is room for, and the tag of each first subword."""
    ids, labels = list[int](), list[int]()
    for word, tag in zip(words, tags, strict=True):
        if len(ids) + len(word) > room:
            yield ids, labels
            ids, labels = [], []
        ids += word
        labels += [tag, *[IGNORED] * (len(word) - 1)]
    yield ids, labels


def question_rows(questions: Iterable[Question], reading: Reading, *, stride: int, max_question: int) -> Iterator[Row]:
    """Yield a row for each window of each context: [CLS] question [SEP] window [SEP].

    Args:
        stride: Number of tokens by which a window begins after the window before it.
        max_question: Number of subwords of a question that are read.

    Raises:
        UserError: There is no room for a window.
    """
    tokenizer, vocabulary, max_length = reading
    context, ids, spans = "", list[int](), list[tuple[int, int]]()
    for chunk in chunks(enumerate(questions)):
        encoded = tokenizer.encode([question.question for _, question in chunk])
        for (number, question), asked in zip(chunk, encoded, strict=True):
            if question.context != context:  # questions follow their context
                context, (ids, spans) = question.context, tokenizer.encode_spans(question.context)
            front, first = sequence(asked[:max_question], [], reading)
            room = max_length - first - 1
            if room < 1:
                problem = f"no room for a context beside a question of {min(len(asked), max_question)} subwords"
                raise UserError(problem, cure="raise `max_length`, or lower `max_question`")
            answer = _tokens_of(question, spans)
            for begin in range(0, max(1, len(ids) - room + stride), stride):
                window = slice(begin, begin + room)
                inside = answer is not None and begin <= answer[0] and answer[1] < begin + room
                places = [token - begin + first for token in answer] if answer and inside else [0, 0]
                yield Row([*front[:first], *ids[window], vocabulary.eos_id], first, places, number, spans[window])


def _tokens_of(question: Question, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and last token of the first answer, or None if there is no answer or it has no token."""
    if not question.spans:
        return None
    answer = question.spans[0]
    inside = [
        token
        for token, (start, end) in enumerate(spans)
        if start < answer.start + len(answer.text) and end > answer.start
    ]
    return (inside[0], inside[-1]) if inside else None


def table_of_rows(kind: Literal["label", "tags", "span"], rows: Iterable[Row], vocabulary: Vocabulary) -> Table:
    """Return a table of rows in memory, for the prediction of annotations of this kind."""
    schema = row_schema(kind, vocabulary.size)
    return Table.in_memory("rows", schema, row_columns(rows, schema))


def batch_of_rows(table: Table, rows: np.ndarray, vocabulary: Vocabulary) -> Batch:
    """Return some rows of a table, int64 [N], as a batch whose side is ``shared``."""
    ids, lengths = table["ids"].gather(rows)
    places = np.arange(int(lengths.max(initial=1)))
    real = places < lengths[:, None]
    tokens = np.full(real.shape, vocabulary.pad_id, dtype=np.int64)
    tokens[real] = ids
    column = table["labels"]
    if column.offsets is None:
        labels = column.values[rows].astype(np.int64)
    else:
        labels = np.full(real.shape, IGNORED, dtype=np.int64)
        labels[real] = column.gather(rows)[0]
    second = (real & (places >= table["first"].values[rows][:, None])).astype(np.int64)
    types = torch.from_numpy(second) if second.any() else None
    sequences = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(lengths), lengths, types)
    return Batch.of({SHARED: sequences}, labels=labels, indices=rows)
