"""Questions whose answers are parts of a text: files, the windows that are read, the task, its objective and figures.

The files are the JSON of SQuAD (Rajpurkar et al., 2016): XQuAD, MLQA, TyDiQA-GoldP. Exact match and F1 of answers are
computed as for SQuAD and MLQA (Lewis et al., 2020).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from xrep.config.fields import Count
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.data.batch import Batch
from xrep.data.build import chunks
from xrep.errors import UserError
from xrep.tasks.task import ExampleKind
from xrep.text.exclusion import TextFormat
from xrep.text.find import TextFile
from xrep.text.lines import read_bytes, unpacked
from xrep.text.records import ending_of, parse_json
from xrep.understanding.annotated import AnnotatedTask, AnnotationCriterion, Reading, Row, outcomes, sequence
from xrep.understanding.classifier import Classifier

Normalisation = Literal["squad", "mlqa"]
QUESTIONS = ExampleKind("questions", "`task` to question_answering")
_CURE = "give a file in SQuAD's form: data, paragraphs, context, qas, question, answers, text, answer_start"
ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": r"\sال^|ال",
}
"""Articles that MLQA leaves out, as regular expressions."""
_IDEOGRAPH = re.compile("[\u4e00-\u9fa5]")
"""A character that MLQA counts as a word in Chinese."""


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
    return Question(row["question"], context, answers, language)


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


def question_rows(questions: Iterable[Question], reading: Reading) -> Iterator[Row]:
    """Yield a row for each window of each context: [CLS] question [SEP] window [SEP]. Raises UserError if there is no
    room for a window."""
    tokenizer, max_length, options = reading.tokenizer, reading.max_length, reading.options
    stride, most = int(options.get("stride", 128)), int(options.get("max_question", 64))
    context, ids, spans = "", list[int](), list[tuple[int, int]]()
    for chunk in chunks(enumerate(questions)):
        encoded = tokenizer.encode([question.question for _, question in chunk])
        for (number, question), asked in zip(chunk, encoded, strict=True):
            if question.context != context:  # questions follow their context
                context, (ids, spans) = question.context, tokenizer.encode_spans(question.context)
            front, first = sequence(asked[:most], [], reading)
            room = max_length - first - 1
            if room < 1:
                problem = f"no room for a context beside a question of {min(len(asked), most)} subwords"
                raise UserError(problem, cure="raise `max_length`, or lower `max_question`")
            answer = _tokens_of(question, spans)
            for begin in range(0, max(1, len(ids) - room + stride), stride):
                window = slice(begin, begin + room)
                inside = answer is not None and begin <= answer[0] and answer[1] < begin + room
                places = [token - begin + first for token in answer] if answer and inside else [0, 0]
                yield Row(
                    [*front[:first], *ids[window], reading.vocabulary.eos_id], first, places, number, spans[window]
                )


def _tokens_of(question: Question, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and last token of the first answer, or None if there is no answer or it has no token."""
    if not question.spans:
        return None
    answer = question.spans[0]
    stop = answer.start + len(answer.text)
    inside = [token for token, (start, end) in enumerate(spans) if start < stop and end > answer.start]
    return (inside[0], inside[-1]) if inside else None


def normalise(answer: str, language: str, form: Normalisation = "mlqa") -> list[str]:
    """Return the words of an answer that are compared: lower case, without punctuation and articles.

    Args:
        language: Canonical code of the answer's language.
        form: ``squad`` treats every language as English, as XTREME does for XQuAD and TyDiQA; ``mlqa`` leaves out the
            articles and Unicode punctuation of each language, and divides Chinese into characters.

    >>> normalise("The “Rhein-Ruhr”  area", "en")
    ['rheinruhr', 'area']
    >>> normalise("第3号", "zh")
    ['第', '3', '号']
    """
    language = "en" if form == "squad" else language
    kept = [own for own in answer.lower() if own not in string.punctuation]
    text = "".join(own for own in kept if form == "squad" or not unicodedata.category(own).startswith("P"))
    if language in ARTICLES:
        text = re.sub(ARTICLES[language], " ", text)
    if language == "zh":
        text = _IDEOGRAPH.sub(lambda match: f" {match[0]} ", text)
    return text.split()


def compare(prediction: str, gold: Sequence[str], language: str, form: Normalisation = "mlqa") -> tuple[float, float]:
    """Return the best F1 of the prediction's words with those of a gold answer, between 0 and 1; and 1 if the
    prediction is one of the gold answers after normalisation, else 0."""
    words, *wanted = (normalise(answer, language, form) for answer in (prediction, *gold))
    shared = ((Counter(words) & Counter(own)).total() for own in wanted)
    scores = (2 * both / max(len(words) + len(own), 1) for both, own in zip(shared, wanted, strict=True))
    return max(scores, default=0.0), float(words in wanted)


class QuestionAnsweringTask(AnnotatedTask):
    """Questions whose answers are parts of a text, in SQuAD's JSON: SQuAD, XQuAD, MLQA, TyDiQA-GoldP.

    A long text is read in windows that overlap; a window without the answer is an example, too. Answers that are not
    where the file says are counted, and nothing is trained on them.
    """

    kind, gives = "span", QUESTIONS
    what, forms = "questions", ".json"
    accepts, read, rows = staticmethod(QuestionText.accepts), staticmethod(read_questions), staticmethod(question_rows)
    labels, texts = staticmethod(lambda example: ()), attrgetter("texts")

    @staticmethod
    def figures(classifier: Any, examples: Sequence[Any], form: Normalisation = "mlqa") -> dict[str, np.ndarray]:
        gold = [([answer.text for answer in own.answers], own.language) for own in examples]
        pairs = zip(classifier.answer(examples), gold, strict=True)
        f1, exact = np.array([compare(found.text, *own, form) for found, own in pairs]).reshape(-1, 2).T
        return {"f1": outcomes(f1, 1), "exact_match": outcomes(exact, 1)}

    @dataclass(kw_only=True)
    class Config(AnnotatedTask.Config):
        max_length: Annotated[int, "[8, inf)"] = 384
        """Maximum length of a question with a window of its text in subwords, special tokens included."""
        stride: Count = 128
        """Number of subwords by which a window begins after the one before it."""
        max_question: Count = 64
        """Number of subwords of a question that are read."""


class Span(AnnotationCriterion):
    """Mean cross-entropy of the first and of the last token of the answer, among the tokens of its row.

    A row whose window of the context has no answer points at its first token. The metric ``exact`` is the percentage of
    rows in which both ends have the largest logits.

    Use:
        Needs: questions, their contexts and the places of the answers (task question_answering), and a pretrained
            encoder, which is trained, too.
        Choose it: to find the answer to a question in a text, also in languages without questions (XTREME's XQuAD, MLQA
            and TyDiQA-GoldP).
        Related: tagging gives every word a tag; classification labels whole texts.

    Example:
        xrep-train squad/ --task question_answering --criterion span --encoder minilm
    """

    reads = (QUESTIONS,)

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"span": len(batch)})

    def forward(self, model: Classifier, planned: Planned) -> Loss:
        batch = planned.batch
        logits = model(batch.tokens).float().masked_fill(~batch.tokens.mask.unsqueeze(-1), -torch.inf)
        ends = [F.cross_entropy(logits[..., end], batch.labels[:, end], reduction="sum") for end in (0, 1)]
        exact = (logits.detach().argmax(dim=1) == batch.labels).all(dim=1)
        return Loss({"span": Term((ends[0] + ends[1]) / 2)}, {"exact": percentage(exact)})
