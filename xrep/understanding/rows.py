"""Rows of annotated text: the sequences of tokens that a classifier reads, and what it is to predict of them.

A row is a text or a pair ([CLS] x [SEP] y [SEP]), the words of a sentence, or a question and a window of its context.
An example has several rows where it is longer than a sequence may be: a long sentence of words is divided between
words, and the context of a question into overlapping windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary
from xrep.data.build import chunks
from xrep.data.table import ColumnType, Schema, Table, flatten, token_type
from xrep.errors import UserError
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer

IGNORED = -100
"""Label of tokens whose label is not predicted."""
Numbering = Callable[[Any], Sequence[int]]
"""Function that returns the numbers of the labels of an example."""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What a classifier predicts. A task tells it to the model in ``TextSpec.facts``."""

    kind: Literal["label", "tags", "span"]
    """A label of each text (label), a tag of each word (tags), or the part of a text that answers a question (span)."""
    labels: list[str] = field(default_factory=list)
    """The labels or tags, in the order of their numbers."""

    @classmethod
    def of(cls, text: TextSpec) -> Annotation:
        """Return what is predicted of a text. Raises UserError if it is not annotated."""
        if "annotation" not in text.facts:
            cure = "choose the `task` classification, tagging or question_answering"
            raise UserError("a classifier needs annotated text", cure=cure)
        return cls(**text.facts["annotation"])

    def facts(self) -> dict[str, Any]:
        return {"annotation": asdict(self)}


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
    """How text is read: the tokenizer, its special ids, how long a row may be, by how many subwords a window of a
    context begins after the one before it, and how many subwords of a question are read."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    max_length: int
    stride: int = 128
    max_question: int = 64

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_length: int, options: Mapping[str, Any]) -> Reading:
        """Return how a task with these options reads text."""
        windows = {name: int(options[name]) for name in ("stride", "max_question") if name in options}
        return cls(tokenizer, Vocabulary.of(tokenizer), max_length, **windows)


def sequence(first: Sequence[int], second: Sequence[int] | None, reading: Reading) -> tuple[list[int], int]:
    """Return [CLS] x [SEP], or [CLS] x [SEP] y [SEP], and the number of tokens up to y (all, if there is none).

    If it is too long, tokens at the end of the longer sentence are left out one by one, as transformers does.
    """
    vocabulary, x, y = reading.vocabulary, list(first), list(second or ())
    separators = [vocabulary.eos_id] * (1 if second is None else vocabulary.pair_separators)
    room = reading.max_length - vocabulary.leading_count - len(separators) - (second is not None)
    while len(x) + len(y) > max(room, 0):
        (x if len(x) > len(y) else y).pop()
    begin = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    front, behind = [*begin, *x, *separators], [] if second is None else [*y, vocabulary.eos_id]
    return front + behind, len(front)


def numbering(known: Sequence[str], labels: Callable[[Any], Sequence[str]]) -> Numbering:
    """Return a function that gives the numbers of the labels of an example, and raises UserError if one of them is not
    known. ``labels`` returns the labels of an example."""
    numbers = {label: number for number, label in enumerate(known)}

    def numbers_of(example: Any) -> list[int]:
        own = labels(example)
        if unknown := [label for label in own if label not in numbers]:
            problem, cure = f"the label {unknown[0]!r} does not occur in the training text", ", ".join(known[:20])
            raise UserError(problem, path=example.path, line=example.line, cure=f"known: {cure}")
        return [numbers[label] for label in own]

    return numbers_of


def row_schema(vocabulary_size: int) -> Schema:
    """Return the columns of a table of rows, which are named as in ``Row``."""
    fixed, labels = ColumnType("<u4"), ColumnType("<i4", ragged=True)
    return {"ids": token_type(vocabulary_size), "labels": labels, "first": fixed, "example": fixed}


def row_columns(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield the columns of some thousand rows at a time, as ``TableWriter.append`` takes them."""
    for chunk in chunks(rows):
        labels = np.fromiter(chain.from_iterable(row.labels for row in chunk), np.int32)
        lengths = np.array([len(row.labels) for row in chunk])
        fixed = {name: np.array([getattr(row, name) for row in chunk]) for name in ("first", "example")}
        yield {"ids": flatten([row.ids for row in chunk]), "labels": (labels, lengths), **fixed}


def batch_of_rows(table: Table, rows: np.ndarray, vocabulary: Vocabulary) -> Batch:
    """Return some rows of a table, int64 [N], as a batch whose side is ``shared`` and whose labels are [N, 1] of texts,
    [N, T] of words, and [N, 2] of questions."""
    tokens, lengths = _padded(table, "ids", rows, vocabulary.pad_id)
    labels, _ = _padded(table, "labels", rows, IGNORED)
    places, first = np.arange(tokens.shape[1]), table["first"].values[rows][:, None]
    second = ((places < lengths[:, None]) & (places >= first)).astype(np.int64)
    types = torch.from_numpy(second) if second.any() else None
    sequences = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(lengths), lengths, types)
    return Batch.of({SHARED: sequences}, labels=labels, indices=rows)


def _padded(table: Table, column: str, rows: np.ndarray, value: int) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows of a ragged column, int64 [N, T], with a value behind the short ones, and their lengths."""
    values, lengths = table[column].gather(rows)
    padded = np.full((len(rows), int(lengths.max(initial=1))), value, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded, lengths
