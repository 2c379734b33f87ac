"""Annotated text as rows of tokens: what a classifier reads and what it is to predict.

A row is one sequence, special tokens included: a text or a pair ([CLS] x [SEP] y [SEP]), the words of a sentence, or a
question and a window of its context. An example has several rows where it is longer than a sequence may be: a long
sentence of words is divided between words, and the context of a question into overlapping windows.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from xrep.data.batching import Batch, TokenBatch, Vocabulary
from xrep.errors import UserError
from xrep.text.annotated import Question, TaggedSentence
from xrep.text.examples import Example
from xrep.text.tokenizer import Tokenizer

IGNORED = -100
"""Label of tokens whose label is not predicted."""
_CHUNK = 1024


@dataclass(frozen=True)
class Row:
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

    ids: list[int]
    first: int
    labels: list[int]
    example: int
    spans: list[tuple[int, int]] = field(default_factory=list)


def sequence(
    first: Sequence[int], second: Sequence[int] | None, vocabulary: Vocabulary, max_length: int
) -> tuple[list[int], int]:
    """Return [CLS] x [SEP], or [CLS] x [SEP] y [SEP], and the number of tokens up to y (all, if there is none).

    If it is too long, tokens at the end of the longer sentence are left out one by one, as transformers does.
    """
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
    examples: Iterable[Example],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    number_of: Callable[[Example], int],
    max_length: int,
) -> Iterator[Row]:
    """Yield a row for each text.

    Args:
        number_of: Function that returns the class of an example.
    """
    for start, chunk in _chunks(examples):
        widest = max(len(example.sentences) for example in chunk)
        columns = [tokenizer.encode([(*e.sentences, "")[column] for e in chunk]) for column in range(widest)]
        for place, example in enumerate(chunk):
            second = columns[1][place] if len(example.sentences) == 2 else None
            ids, first = sequence(columns[0][place], second, vocabulary, max_length)
            yield Row(ids, first, [number_of(example)], start + place)


def tag_rows(
    sentences: Iterable[TaggedSentence],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    numbers_of: Callable[[TaggedSentence], list[int]],
    max_length: int,
) -> Iterator[Row]:
    """Yield the rows of each sentence. The first subword of a word has its tag.

    Every word is encoded alone, as the beginning of a word. A subword that is nothing but the space before a word is
    left out: SentencePiece has it before nearly all words of Chinese, which are written without spaces, and it is the
    same for all of them. A sentence that is too long is divided between words, and a word without subwords is an
    unknown one, so that every word has a tag.
    """
    is_space = functools.cache(lambda token: not tokenizer.decode([token]).strip())
    for start, chunk in _chunks(sentences):
        unique = dict.fromkeys(word for sentence in chunk for word in sentence.words)
        encoded = tokenizer.encode([f" {word}" for word in unique])
        visible = [ids[1:] if len(ids) > 1 and is_space(ids[0]) else ids for ids in encoded]
        subwords = {word: ids or [vocabulary.unk_id] for word, ids in zip(unique, visible, strict=True)}
        for place, sentence in enumerate(chunk):
            words = [subwords[word][: max_length - vocabulary.special_count] for word in sentence.words]
            for ids, tags in _divided(words, numbers_of(sentence), max_length - vocabulary.special_count):
                begin = vocabulary.special_count - 1
                whole = [*([vocabulary.bos_id] if vocabulary.bos_id is not None else []), *ids, vocabulary.eos_id]
                yield Row(whole, len(whole), [*[IGNORED] * begin, *tags, IGNORED], start + place)


def _divided(words: list[list[int]], tags: list[int], room: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the subwords of as many words as there is room for, and the tag of each first subword."""
    ids, labels = list[int](), list[int]()
    for word, tag in zip(words, tags, strict=True):
        if len(ids) + len(word) > room:
            yield ids, labels
            ids, labels = [], []
        ids += word
        labels += [tag, *[IGNORED] * (len(word) - 1)]
    yield ids, labels


def question_rows(
    questions: Iterable[Question],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int,
    max_question: int,
) -> Iterator[Row]:
    """Yield a row for each window of each context: [CLS] question [SEP] window [SEP].

    Args:
        stride: Number of tokens by which a window begins after the window before it.
        max_question: Number of subwords of a question that are read.

    Raises:
        UserError: There is no room for a window.
    """
    contexts: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
    for number, question in enumerate(questions):
        if question.context not in contexts:
            contexts = {question.context: tokenizer.encode_spans(question.context)}  # questions follow their context
        ids, spans = contexts[question.context]
        asked = tokenizer.encode([question.question])[0][:max_question]
        front, first = sequence(asked, [], vocabulary, max_length)
        front = front[:first]
        room = max_length - len(front) - 1
        if room < 1:
            problem = f"no room for a context beside a question of {len(asked)} subwords"
            raise UserError(problem, cure="raise `max_length`, or lower `max_question`")
        answer = _tokens_of(question, spans)
        for begin in range(0, max(1, len(ids) - room + stride), stride):
            window = slice(begin, begin + room)
            inside = answer is not None and begin <= answer[0] and answer[1] < begin + room
            places = [token - begin + len(front) for token in answer] if answer and inside else [0, 0]
            yield Row([*front, *ids[window], vocabulary.eos_id], len(front), places, number, spans[window])


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


def _chunks(items: Iterable) -> Iterator[tuple[int, list]]:
    rest, start = iter(items), 0
    while chunk := list(islice(rest, _CHUNK)):
        yield start, chunk
        start += len(chunk)


@dataclass
class AnnotatedBatch(Batch):
    """A batch of N rows.

    Attributes:
        tokens: The sequences, with ``types`` where there are pairs.
        labels: int64: the class of each text [N]; the tag of each token [N, T]; or the first and last token of the
            answer [N, 2].
        indices: int64 [N], the number of each row in its split.
    """

    tokens: TokenBatch
    labels: Tensor
    indices: Tensor

    def rows(self, start: int, stop: int) -> AnnotatedBatch:
        """Return the rows ``start`` to ``stop``, with no more padding than the longest of them needs."""
        tokens, labels = self.tokens.rows(start, stop), self.labels[start:stop]
        if labels.dim() == 2:
            labels = labels[:, : max(2, tokens.tokens.size(1))]
        return AnnotatedBatch(tokens, labels, self.indices[start:stop])

    @property
    def token_count(self) -> int:
        return self.tokens.real_tokens

    def __len__(self) -> int:
        return len(self.tokens)


class Rows:
    """The rows of a split, all of them in memory.

    Attributes:
        lengths: int64 [n], the number of tokens of each row.
        examples: int64 [n], the number of the example that each row belongs to.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._ids, self._labels = list[np.ndarray](), list[np.ndarray]()
        first, examples = list[int](), list[int]()
        for row in rows:
            self._ids.append(np.array(row.ids, dtype=np.int32))
            self._labels.append(np.array(row.labels, dtype=np.int32))
            first.append(row.first)
            examples.append(row.example)
        self._first = np.array(first, dtype=np.int64)
        self.examples = np.array(examples, dtype=np.int64)
        self.lengths = np.array([len(row) for row in self._ids], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.examples)

    def digest(self) -> str:
        """Return a digest of all rows."""
        digest = hashlib.sha256(self.lengths.tobytes() + self._first.tobytes())
        for part in (*self._ids, *self._labels):
            digest.update(part.tobytes())
        return digest.hexdigest()

    def batch(self, rows: np.ndarray, vocabulary: Vocabulary, kind: str) -> AnnotatedBatch:
        """Return some rows as a batch.

        Args:
            rows: int64 [N], numbers of rows.
            kind: ``Annotation.kind``.
        """
        lengths = self.lengths[rows]
        width = int(lengths.max(initial=1))
        tokens = np.full((len(rows), width), vocabulary.pad_id, dtype=np.int64)
        labels = np.full((len(rows), {"label": 1, "span": 2}.get(kind, width)), IGNORED, dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            tokens[place, : lengths[place]] = self._ids[row]
            labels[place, : len(self._labels[row])] = self._labels[row]
        types = (np.arange(width) >= self._first[rows][:, None]) & (np.arange(width) < lengths[:, None])
        batch = TokenBatch(
            torch.from_numpy(tokens),
            torch.from_numpy(lengths),
            lengths,
            torch.from_numpy(types.astype(np.int64)) if types.any() else None,
        )
        targets = torch.from_numpy(labels[:, 0] if kind == "label" else labels)
        return AnnotatedBatch(batch, targets, torch.from_numpy(rows))
