"""Reader of questions about texts in the JSON of SQuAD (Rajpurkar et al., 2016): XQuAD, MLQA, TyDiQA-GoldP."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.text.annotated import AnnotatedFile, Answer, Question
from xrep.text.lines import Unpacked
from xrep.text.readers import plain_name

SUFFIXES = (".json",)
_CURE = "give a file in SQuAD's form: data, paragraphs, context, qas, question, id, answers, text, answer_start"


def is_questions(path: Path) -> bool:
    """Return whether a file of a folder may be questions: JSON that has paragraphs near its beginning."""
    if not plain_name(path).endswith(SUFFIXES):
        return False
    with suppress(UserError), Unpacked(path) as stream:
        return b'"paragraphs"' in stream.read(1 << 20, 1)
    return False


def read_questions(file: AnnotatedFile, counts: Counter[str] | None = None) -> Iterator[Question]:
    """Yield the questions of a file.

    Args:
        counts: Counter to which are added the questions ``read``, and the answers that are not where ``answer_start``
            says (``answer not in context``), which no model is trained on.

    Raises:
        UserError: The file is not in SQuAD's form, or a context is empty.
    """
    counts = Counter() if counts is None else counts
    with Unpacked(file.path) as stream:
        written = stream.read(-1, 1)
    try:
        content = json.loads(written)
    except (ValueError, RecursionError):
        raise UserError("not a JSON file", path=file.path, cure="fetch the file again") from None
    try:
        articles = content["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    except (KeyError, TypeError):
        raise UserError("not questions in SQuAD's form", path=file.path, cure=_CURE) from None
    for number, paragraph in enumerate(paragraphs):
        try:
            context, asked = _text(paragraph["context"]), [_fields(row) for row in paragraph["qas"]]
        except (KeyError, TypeError, ValueError):
            problem = f"paragraph {number + 1} is not in SQuAD's form"
            raise UserError(problem, path=file.path, cure=_CURE) from None
        if not context.strip():
            problem = f"the context of paragraph {number + 1} is empty"
            raise UserError(problem, path=file.path, cure="give each question a text that answers it")
        for identity, question, answers in asked:
            counts["read"] += 1
            asked_about = Question(identity, question, context, tuple(answers), file.language)
            counts["answer not in context"] += len(answers) - len(asked_about.spans)
            yield asked_about


def _fields(row: Any) -> tuple[str, str, list[Answer]]:
    answers = [Answer(_text(answer["text"]), answer["answer_start"]) for answer in row.get("answers") or []]
    if not all(type(answer.start) is int and answer.start >= 0 for answer in answers):
        raise ValueError
    return str(row["id"]), _text(row["question"]), answers


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
