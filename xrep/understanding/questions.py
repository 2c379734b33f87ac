"""Questions whose answers are parts of a text: the windows that are read, the task, its objective and figures.

Exact match and F1 of answers are computed as for SQuAD and MLQA (Lewis et al., 2020).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from xrep.config.fields import Count
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.data.batch import Batch
from xrep.data.build import chunks
from xrep.errors import UserError
from xrep.tasks.task import ExampleKind
from xrep.understanding.annotated import AnnotatedTask, AnnotationCriterion, Reading, Row, outcomes, sequence
from xrep.understanding.classifier import Classifier
from xrep.understanding.formats import Question, is_questions, read_questions

Normalisation = Literal["squad", "mlqa"]
QUESTIONS = ExampleKind("questions", "`task` to question_answering")
STRIDE, MAX_QUESTION = 128, 64
"""Subwords from the beginning of a window to that of the next one, and those of a question that are read."""
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


def question_rows(questions: Iterable[Question], reading: Reading) -> Iterator[Row]:
    """Yield a row for each window of each context: [CLS] question [SEP] window [SEP]. A window begins ``stride`` tokens
    after the one before it or, if that is not before its end, in its middle. Raises UserError if there is no room for a
    window."""
    tokenizer, max_length, options = reading.tokenizer, reading.max_length, reading.options
    stride, most = int(options.get("stride", STRIDE)), int(options.get("max_question", MAX_QUESTION))
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
            answer, step = _tokens_of(question, spans), stride if stride < room else (room + 1) // 2
            for begin in range(0, max(1, len(ids) - room + step), step):
                window = slice(begin, begin + room)
                inside = answer is not None and begin <= answer[0] and answer[1] < begin + room
                places = [token - begin + first for token in answer] if answer and inside else [0, 0]
                yield Row([*front[:first], *ids[window], reading.vocabulary.end], first, places, number, spans[window])


def training_rows(questions: Iterable[Question], reading: Reading) -> Iterator[Row]:
    """Yield the rows of the questions to train on: not of those whose answers are not where the file says, because rows
    without an answer teach that there is none."""
    known = (own for own in questions if own.spans or not any(answer.text for answer in own.answers))
    return question_rows(known, reading)


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
    accepts, read, rows = staticmethod(is_questions), staticmethod(read_questions), staticmethod(training_rows)
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
        stride: Count = STRIDE
        """Number of subwords by which a window begins after the one before it; half a window if windows are shorter."""
        max_question: Count = MAX_QUESTION
        """Number of subwords of a question that are read."""


class Span(AnnotationCriterion):
    """Mean cross-entropy of the first and of the last token of the answer, among the tokens of its row.

    A row whose window of the context has no answer points at its first token. The metric ``exact`` is the percentage of
    rows in which both ends have the largest logits.

    Use:
        - Needs: questions, their contexts and the places of the answers (task question_answering), and a pretrained
            encoder, which is trained, too.
        - Choose it: to find the answer to a question in a text, also in languages without questions (XTREME's XQuAD,
            MLQA and TyDiQA-GoldP).
        - Related: tagging gives every word a tag; classification labels whole texts.

    Example:
        ```sh
        xrep-train squad/ --task question_answering --criterion span --encoder minilm
        ```
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
