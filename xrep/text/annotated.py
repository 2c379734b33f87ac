"""Words with tags and questions with answers, and the readers of the files in which they are published.

Tags are parts of speech in CoNLL-U (Universal Dependencies), or entities as in PAN-X (WikiAnn). A ``.conllu`` file has
ten columns, of which the second is the word and the fourth the part of speech (UPOS). Lines of multi-word tokens
(``3-4``) and of empty nodes (``5.1``) are skipped, as in XTREME. A ``.tsv`` or ``.txt`` file has a word and a tag on
each line, separated by a tab or, if there is none, by the last space; the word may have the prefix of its language
(``en:Paris``), as in the files of WikiAnn. Empty lines separate sentences in both.

Questions are in the JSON of SQuAD (Rajpurkar et al., 2016): XQuAD, MLQA, TyDiQA-GoldP.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.text.find import TextFile
from xrep.text.lines import read_bytes, read_lines, unpacked
from xrep.text.records import ending_of, parse_json, plain_name

_COLUMNS = 10
_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]+)?:(?=.)")
_CURE = "give a file in SQuAD's form: data, paragraphs, context, qas, question, id, answers, text, answer_start"


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and the tag of each word; and where the first word is written."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    language: str
    path: Path
    line: int

    @property
    def text(self) -> str:
        """The sentence, with one space between two words."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Answer:
    """An answer: characters ``start`` to ``start + len(text)`` of the context."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, the context that it is asked about, and the answers of the annotators."""

    identity: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    language: str

    @property
    def texts(self) -> list[str]:
        """The question, and the paragraphs of the context."""
        return [self.question, *filter(None, self.context.splitlines())]

    @property
    def spans(self) -> list[Answer]:
        """The answers that are where their ``start`` says; an empty one is nowhere."""
        return [a for a in self.answers if a.text and self.context[a.start : a.start + len(a.text)] == a.text]


def is_tagged(path: Path) -> bool:
    """Return whether a file of a folder may be tagged words; one such as README.txt is not."""
    name = plain_name(path).lower()
    return ending_of(path) in ("conllu", "tsv", "txt", "bio", "iob2") and not name.startswith(("readme", "license"))


def read_tagged(file: TextFile) -> Iterator[TaggedSentence]:
    """Yield the tagged sentences of a file. Raises UserError if a line has another number of columns, or a word has no
    tag."""
    word_of = _conllu_word if ending_of(file.path) == "conllu" else _tagged_word
    sentence = list[tuple[int, str, str]]()
    is_prefixed: bool | None = None
    for number, line in read_lines(file.path):
        if not line.strip():
            yield from _sentence(sentence, file)
            sentence = []
        elif pair := word_of(line, file, number):
            word, tag = pair
            if word_of is _tagged_word:
                is_prefixed = bool(_PREFIX.match(word)) if is_prefixed is None else is_prefixed
                word = _PREFIX.sub("", word, count=1) if is_prefixed else word
            sentence.append((number, word, tag))
    yield from _sentence(sentence, file)


def _sentence(rows: list[tuple[int, str, str]], file: TextFile) -> Iterator[TaggedSentence]:
    if rows:
        lines, words, tags = zip(*rows, strict=True)
        yield TaggedSentence(words, tags, file.language, file.path, lines[0])


def _conllu_word(line: str, file: TextFile, number: int) -> tuple[str, str] | None:
    """Return the word and the tag of a line; None if it has none."""
    if line.startswith("#"):
        return None
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        problem = f"{len(columns)} columns where CoNLL-U has {_COLUMNS}"
        raise UserError(problem, path=file.path, line=number, cure="separate them by tabs")
    identity, word, _, tag = columns[:4]
    if re.fullmatch(r"\d+[-.]\d+", identity):
        return None
    if tag in ("", "_"):
        raise UserError(f"the word {word!r} has no UPOS", path=file.path, line=number, cure="tag it, or leave it out")
    return word, tag


def _tagged_word(line: str, file: TextFile, number: int) -> tuple[str, str]:
    columns = line.split("\t") if "\t" in line else line.rsplit(" ", 1)
    if len(columns) < 2 or not columns[0] or not columns[-1].strip():
        cure = "write word<TAB>tag, and an empty line after each sentence"
        raise UserError("not a word and its tag", path=file.path, line=number, cure=cure)
    return columns[0], columns[-1].strip()


def is_questions(path: Path) -> bool:
    """Return whether a file of a folder may be questions: JSON that has paragraphs near its beginning."""
    with suppress(UserError):
        if ending_of(path) == "json":
            with unpacked(path) as stream:
                return b'"paragraphs"' in stream.read(1 << 20)
    return False


def read_questions(file: TextFile, counts: Counter[str] | None = None) -> Iterator[Question]:
    """Yield the questions of a file.

    Args:
        counts: Counter to which are added the questions ``read``, and the answers that are not where ``answer_start``
            says (``answer not in context``), which no model is trained on.

    Raises:
        UserError: The file is not in SQuAD's form, or a context is empty.
    """
    counts = Counter() if counts is None else counts
    content = parse_json(read_bytes(file.path), file.path)
    try:
        paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    except (KeyError, TypeError):
        raise UserError("not questions in SQuAD's form", path=file.path, cure=_CURE) from None
    for number, paragraph in enumerate(paragraphs, 1):
        try:
            context = _text(paragraph["context"])
            questions = [_question(row, context, file.language) for row in paragraph["qas"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"paragraph {number} is not in SQuAD's form", path=file.path, cure=_CURE) from None
        if not context.strip():
            problem = f"the context of paragraph {number} is empty"
            raise UserError(problem, path=file.path, cure="give each question a text that answers it")
        for question in questions:
            counts["read"] += 1
            counts["answer not in context"] += len(question.answers) - len(question.spans)
            yield question


def _question(row: Any, context: str, language: str) -> Question:
    answers = [Answer(_text(answer["text"]), answer["answer_start"]) for answer in row.get("answers") or []]
    if not all(type(answer.start) is int and answer.start >= 0 for answer in answers):
        raise ValueError
    return Question(str(row["id"]), _text(row["question"]), context, tuple(answers), language)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
