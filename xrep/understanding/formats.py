"""Files of tagged words and of questions, as they are published.

Tags are parts of speech in CoNLL-U (Universal Dependencies), or entities as in PAN-X (WikiAnn). A ``.conllu`` file has
ten columns, of which the second is the word and the fourth the part of speech (UPOS). Lines of multi-word tokens
(``3-4``) and of empty nodes (``5.1``) are skipped, as in XTREME. A ``.tsv`` or ``.txt`` file has a word and a tag on
each line, the first and the last of its columns, which are separated by tabs or, if there are none, by spaces (CoNLL
2003); the word may have the prefix of its language (``en:Paris``), as in the files of WikiAnn. In files of Universal
NER, which have five columns, these are the second and the third one. Comments (``# id``, ``# text = ``) are skipped.
Empty lines separate sentences in all of them.

Questions are in the JSON of SQuAD (Rajpurkar et al., 2016): XQuAD, MLQA, TyDiQA-GoldP. The latter has several languages
in a file, and names that of a question at the beginning of its id (``finnish-76``).

No module that is imported here needs torch, because ``xrep-preprocess --exclude`` reads these files without it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from xrep.errors import UserError
from xrep.text.exclusion import TextFormat
from xrep.text.find import TextFile
from xrep.text.lines import read_bytes, read_lines, unpacked
from xrep.text.records import ending_of, parse_json, plain_name

_COLUMNS, _FIRST_LINES = 10, 1000
_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]+)?:(?=.)")
_COMMENT = re.compile(r"# (?:\w+ = |id \S)")
_NUMBERED = re.compile(r"\d+\t([^\t]+)\t([^\t]+)\t[^\t]*\t[^\t]*")
_TYDIQA = {
    "arabic": "ar", "bengali": "bn", "english": "en", "finnish": "fi", "indonesian": "id", "korean": "ko",
    "russian": "ru", "swahili": "sw", "telugu": "te",
}  # fmt: skip
_MIXED = re.compile(r"context-(\w+)-question-(?!\1\b)")
"""Files of MLQA in which questions and contexts have different languages."""
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()
_TAG = re.compile(rf"O|[BIESLU]-\S+|{'|'.join(_UPOS)}")
_CURE = "give a file in SQuAD's form: data, paragraphs, context, qas, question, answers, text, answer_start"


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and the tag of each word; and where the first word is written."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    language: str = ""
    path: Path = Path()
    line: int = 0

    @property
    def text(self) -> str:
        """The sentence, with one space between two words."""
        return " ".join(self.words)


def is_tagged(path: Path) -> bool:
    """Return whether a file of a folder may be tagged words; one such as README.txt is not."""
    name = plain_name(path).lower()
    return ending_of(path) in ("conllu", "tsv", "txt", "bio", "iob2") and not name.startswith(("readme", "license"))


def read_tagged(file: TextFile, counts: Counter[str] | None = None) -> Iterator[TaggedSentence]:
    """Yield the tagged sentences of a file. ``counts`` stays as it is, because none is left out. Raises UserError if a
    line has another number of columns, or a word has no tag."""
    word_of = _conllu_word if ending_of(file.path) == "conllu" else _tagged_word
    is_prefixed = None if word_of is _tagged_word else False
    for is_empty, lines in groupby(read_lines(file.path), key=lambda line: not line[1].strip()):
        rows = [] if is_empty else [(n, *own) for n, line in lines if (own := word_of(line, file.path, n))]
        if rows:
            numbers, words, tags = zip(*rows, strict=True)
            is_prefixed = bool(_PREFIX.match(words[0])) if is_prefixed is None else is_prefixed
            words = tuple(_PREFIX.sub("", word, count=1) for word in words) if is_prefixed else words
            yield TaggedSentence(words, tags, file.language, file.path, numbers[0])


def _conllu_word(line: str, path: Path, number: int) -> tuple[str, str] | None:
    """Return the word and the tag of a line; None if it has none."""
    if line.startswith("#"):
        return None
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        problem = f"{len(columns)} columns where CoNLL-U has {_COLUMNS}"
        raise UserError(problem, path=path, line=number, cure="separate them by tabs")
    identity, word, _, tag = columns[:4]
    if re.fullmatch(r"\d+[-.]\d+", identity):
        return None
    if tag in ("", "_"):
        raise UserError(f"the word {word!r} has no UPOS", path=path, line=number, cure="tag it, or leave it out")
    return word, tag


def _tagged_word(line: str, path: Path, number: int) -> tuple[str, str] | None:
    if _COMMENT.match(line):
        return None
    columns = _split(line)
    if len(columns) < 2 or not columns[0] or not columns[-1].strip():
        cure = "write word<TAB>tag, and an empty line after each sentence"
        raise UserError("not a word and its tag", path=path, line=number, cure=cure)
    return columns[0], columns[-1].strip()


def _split(line: str) -> list[str]:
    """Return the columns of a line, of which the first is the word and the last the tag."""
    numbered = _NUMBERED.fullmatch(line)
    if numbered and _TAG.fullmatch(numbered[2]):
        return list(numbered.groups())
    return line.split("\t" if "\t" in line else " ")


class TaggedText(TextFormat):
    """Tagged words, which ``--exclude`` joins to sentences by spaces."""

    @staticmethod
    def accepts(path: Path) -> bool:
        """Return whether this is CoNLL-U, or its first lines are words with their tags: the tags are known, or no word
        and no tag has a space and there are blank lines between sentences."""
        if ending_of(path) in ("conllu", "json"):
            return ending_of(path) == "conllu"
        lines = list[str]()
        with suppress(UserError):  # some published sets are in another encoding, but none of tagged words
            first = islice(read_lines(path, allow_empty=True), _FIRST_LINES)
            lines = [line for _, line in first if not _COMMENT.match(line)]
        rows = [_split(line) for line in lines if line.strip()]
        if not rows or min(map(len, rows)) < 2:
            return False
        are_words = not any(" " in line or "\t" not in line for line in lines if line.strip())
        return all(_TAG.fullmatch(row[-1].strip()) for row in rows) or are_words and not all(map(str.strip, lines[:-1]))

    @staticmethod
    def texts(file: TextFile) -> Iterator[str]:
        return (sentence.text for sentence in read_tagged(file))


class Answer(NamedTuple):
    """An answer: characters ``start`` to ``start + len(text)`` of the context."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, the context that it is asked about, and the answers of the annotators."""

    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    language: str = ""

    @property
    def texts(self) -> list[str]:
        """The question, and the paragraphs of the context."""
        return [self.question, *filter(None, self.context.splitlines())]

    @property
    def spans(self) -> list[Answer]:
        """The answers that are where their ``start`` says; an empty one is nowhere."""
        return [a for a in self.answers if a.text and self.context[a.start : a.start + len(a.text)] == a.text]


def read_questions(file: TextFile, counts: Counter[str] | None = None) -> Iterator[Question]:
    """Yield the questions of a file.

    Args:
        counts: Counter to which are added the questions ``read``, and the answers that are not where ``answer_start``
            says (``answer not in context``), which no model is trained on.

    Raises:
        UserError: The file is not in SQuAD's form, or a context is empty.
    """
    counts = Counter() if counts is None else counts
    content, number = parse_json(read_bytes(file.path), file.path), 0
    try:
        paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
        for number, paragraph in enumerate(paragraphs, 1):
            if not paragraph["context"].strip():
                problem = f"the context of paragraph {number} is empty"
                raise UserError(problem, path=file.path, cure="give each question a text that answers it")
            for question in [_question(row, paragraph["context"], file.language) for row in paragraph["qas"]]:
                counts["read"] += 1
                counts["answer not in context"] += len(question.answers) - len(question.spans)
                yield question
    except (KeyError, TypeError, ValueError, AttributeError):
        problem = f"paragraph {number} is not in SQuAD's form" if number else "not questions in SQuAD's form"
        raise UserError(problem, path=file.path, cure=_CURE) from None


def _question(row: Any, context: str, language: str) -> Question:
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in row.get("answers") or ())
    texts = row["question"], *(answer.text for answer in answers)
    starts_are_places = all(type(answer.start) is int and answer.start >= 0 for answer in answers)
    if not starts_are_places or not all(isinstance(text, str) for text in texts):
        raise ValueError
    own, dash, _ = str(row.get("id")).partition("-")
    return Question(row["question"], context, answers, _TYDIQA.get(own, language) if dash else language)


def is_questions(path: Path) -> bool:
    """Return whether a file of a folder may be questions, whose contexts are in the same language."""
    return not _MIXED.search(path.name) and QuestionText.accepts(path)


class QuestionText(TextFormat):
    """Questions and contexts in SQuAD's JSON."""

    @staticmethod
    def accepts(path: Path) -> bool:
        """Return whether a file may be questions: JSON that has paragraphs near its beginning."""
        with suppress(UserError):
            if ending_of(path) == "json":
                with unpacked(path) as stream:
                    return b'"paragraphs"' in stream.read(1 << 20)
        return False

    @staticmethod
    def texts(file: TextFile) -> Iterator[str]:
        return (text for question in read_questions(file) for text in question.texts)
