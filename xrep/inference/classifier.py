"""Use of trained classifiers: the label of a text or a pair, the tags of words, the answers to questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xrep.data.batch import TextSpec, batches_of
from xrep.data.rows import (
    IGNORED,
    Reading,
    Row,
    batch_of_rows,
    label_rows,
    question_rows,
    table_of_rows,
    tag_rows,
)
from xrep.data.table import Table
from xrep.errors import UserError
from xrep.models.classifier import load_classifier
from xrep.models.device import to_device
from xrep.models.directory import fingerprint, load_model, open_checkpoint
from xrep.models.kinds import expect
from xrep.models.model import ClassifyingModel
from xrep.precision import Precision
from xrep.text.annotated import Question, TaggedSentence
from xrep.text.examples import Example
from xrep.text.sides import SHARED, Tokenizers, open_tokenizers

BATCH_TOKENS = 4096
CANDIDATES, MAX_ANSWER = 20, 30
"""As in BERT's evaluation: the best beginnings and ends of a window that are combined, subwords of an answer."""
WINDOWS = {"stride": 128, "max_question": 64}
"""The windows of a context, unless the run says otherwise."""
KINDS = {
    "label": ("labels of texts", "xnli, pawsx or amazon"),
    "tags": ("tags of words", "pos or ner"),
    "span": ("answers to questions", "qa"),
}
"""What each kind of classifier predicts, and the evaluations that measure it."""


@dataclass(frozen=True)
class FoundAnswer:
    """The best answer in a context: characters ``start`` to ``start + len(text)``, and the sum of its two logits."""

    text: str
    start: int
    score: float


@dataclass(eq=False, repr=False)
class SentenceClassifier:
    """A trained classifier with its tokenizer. It predicts annotations of one kind; other predictions are a UserError.

    >>> classifier = SentenceClassifier.load("xnli-run/best")                               # doctest: +SKIP
    >>> classifier.predict([("A man sleeps.", "Nobody is awake.")])                         # doctest: +SKIP
    (['neutral'], array([[0.2, 0.7, 0.1]]))

    Attributes:
        path: Where it was loaded from.
        annotation: What it predicts: its kind and its labels.
        options: Those of the task that it was trained for, of which the windows of a context are made.
        training_hashes: File of the hashes of its training sentences, or None.
    """

    model: ClassifyingModel
    text: TextSpec
    tokenizers: Tokenizers
    _: KW_ONLY
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    training_hashes: Path | None = None
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self) -> None:
        self.annotation = self.model.annotation
        self._reading = Reading(self.tokenizers[SHARED], self.text.vocabulary(SHARED), self.text.max_length)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str | None = None,
        dtype: Precision = "float32",
        batch_tokens: int = BATCH_TOKENS,
    ) -> SentenceClassifier:
        """Load a classifier from a checkpoint of a run, such as ``run1/best``, or from a directory of transformers.

        ``device`` and ``dtype`` are as for ``SentenceEncoder.load``: the default device is a GPU if there is one.

        Raises:
            UserError: It is neither, or its model is not a classifier, or the device does not compute in ``dtype``.
        """
        run: dict[str, Any] = {}
        if expect(path, "classifier", "pretrained classifier") == "pretrained classifier":
            model, text, tokenizers = load_classifier(Path(path))
        else:
            checkpoint = open_checkpoint(path)
            model, text = load_model(checkpoint), checkpoint.text
            tokenizers = open_tokenizers(checkpoint.tokenizer)
            run = {"options": checkpoint.config.get("task") or {}, "training_hashes": checkpoint.training_hashes}
        return cls(to_device(model, device, dtype), text, tokenizers, path=str(path), batch_tokens=batch_tokens, **run)

    def fingerprint(self) -> str:
        """Return a digest that changes when the predictions change."""
        return fingerprint(self.model, self.text)

    def check_kind(self, kind: str) -> None:
        """Raise UserError if the classifier predicts something else than annotations of this kind."""
        if self.annotation.kind != kind:
            (predicted, tests), (wanted, _) = KINDS[self.annotation.kind], KINDS[kind]
            problem, cure = f"this classifier predicts {predicted}, not {wanted}", f"measure it by xrep-eval {tests}"
            raise UserError(problem, path=self.path or None, cure=cure)

    def predict(self, texts: Sequence[str | tuple[str, ...]]) -> tuple[list[str], np.ndarray]:
        """Return the most probable label of each of N texts or pairs, and the probabilities of all L labels, float32
        [N, L], whose columns are ``annotation.labels``."""
        self.check_kind("label")
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        examples = [Example(tuple(" ".join(one.split()) for one in pair), ()) for pair in pairs]
        rows = self._table(label_rows(examples, self._reading, lambda _: (0,)))
        logits = torch.empty(len(examples), len(self.annotation.labels))
        for row, _, row_logits in self._logits(rows):
            logits[row] = row_logits
        probabilities = logits.softmax(dim=1).numpy()
        return [self.annotation.labels[best] for best in probabilities.argmax(axis=1)], probabilities

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the tag of each word of each sentence."""
        self.check_kind("tags")
        examples = [TaggedSentence(tuple(words), (), "", Path(), 0) for words in sentences]
        rows = self._table(tag_rows(examples, self._reading, lambda e: (0,) * len(e.words)))
        best_of_row = {row: logits.argmax(dim=1)[labels != IGNORED] for row, labels, logits in self._logits(rows)}
        tags = [list[str]() for _ in examples]
        for row, example in enumerate(rows["example"].values.tolist()):
            tags[example] += [self.annotation.labels[best] for best in best_of_row[row].tolist()]
        return tags

    def answer(self, questions: Sequence[Question]) -> list[FoundAnswer]:
        """Return the best answer to each question in its context; a UserError says if there is no room for a context
        beside a question."""
        self.check_kind("span")
        sizes = {name: int(self.options.get(name, usual)) for name, usual in WINDOWS.items()}
        windows = list(question_rows(questions, self._reading, **sizes))
        best = [FoundAnswer("", 0, -float("inf"))] * len(questions)
        for number, _, logits in self._logits(self._table(windows)):
            row = windows[number]
            span = best_span(logits.numpy(), row)
            if span is not None and span[2] > best[row.example].score:
                start, end, score = span
                text = questions[row.example].context[start:end]
                best[row.example] = FoundAnswer(text.strip(), end - len(text.lstrip()), score)
        return best

    def _table(self, rows: Iterable[Row]) -> Table:
        return table_of_rows(self.annotation.kind, rows, self._reading.vocabulary)

    @torch.inference_mode()
    def _logits(self, rows: Table) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the number of each row, its labels, and its logits in float32 on the CPU, similar lengths together."""
        self.model.eval()
        device = next(self.model.parameters()).device
        for numbers in batches_of(rows["ids"].lengths(np.arange(len(rows))), self.batch_tokens):
            batch = batch_of_rows(rows, np.array(numbers), self._reading.vocabulary)
            yield from zip(numbers, batch.labels, self.model(batch.tokens.to(device)).float().cpu(), strict=True)


def best_span(logits: np.ndarray, row: Row) -> tuple[int, int, float] | None:
    """Return the best answer in a window: its characters (start, end) in the context, and the sum of its logits [T, 2]
    of beginning and end; None if the window has no tokens of the context."""
    begins, ends = logits[row.first : row.first + len(row.spans)].T
    candidates = [np.argsort(-column, kind="stable")[:CANDIDATES].tolist() for column in (begins, ends)]
    pairs = [(begin, end) for begin, end in product(*candidates) if begin <= end < begin + MAX_ANSWER]
    if not pairs:
        return None
    begin, end = max(pairs, key=lambda pair: begins[pair[0]] + ends[pair[1]])
    return row.spans[begin][0], row.spans[end][1], float(begins[begin] + ends[end])
