"""Use of trained classifiers: the label of a text or a pair, the tags of words, the answers to questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xrep.data.annotated import IGNORED, AnnotatedBatch, Row, Rows, label_rows, question_rows, tag_rows
from xrep.data.batching import TextSpec, batches_of
from xrep.errors import UserError
from xrep.models.classifier import load_classifier
from xrep.models.device import to_device
from xrep.models.directory import TOKENIZER, fingerprint, load_model, open_checkpoint
from xrep.models.kinds import expect
from xrep.models.model import ClassifyingModel
from xrep.precision import Precision
from xrep.text.annotated import LabelledText, Question, TaggedSentence
from xrep.text.sides import SHARED, Tokenizers, open_tokenizers

BATCH_TOKENS = 4096
CANDIDATES = 20
"""Number of beginnings and ends of each window that are combined, as in BERT's evaluation."""
MAX_ANSWER = 30
"""Number of subwords of the longest answer, as in BERT's evaluation."""
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


class SentenceClassifier:
    """A trained classifier with its tokenizer.

    >>> classifier = SentenceClassifier.load("xnli-run/best")                               # doctest: +SKIP
    >>> classifier.predict([("A man sleeps.", "Nobody is awake.")])                         # doctest: +SKIP
    (['neutral'], array([[0.2, 0.7, 0.1]]))

    Attributes:
        path: Where it was loaded from.
        annotation: What it predicts: its kind and its labels.
        training_hashes: File of the hashes of its training sentences, or None.
    """

    def __init__(
        self,
        model: ClassifyingModel,
        text: TextSpec,
        tokenizers: Tokenizers,
        *,
        path: str = "",
        options: dict[str, Any] | None = None,
        training_hashes: Path | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.model, self.text, self.tokenizers, self.path = model, text, tokenizers, path
        self._reading = tokenizers[SHARED], text.vocabulary(SHARED)
        self.annotation, self.training_hashes = model.annotation, training_hashes
        self._options, self._batch_tokens = options or {}, batch_tokens

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
        if expect(path, "classifier", "pretrained classifier") == "pretrained classifier":
            model, text, tokenizers = load_classifier(Path(path))
            return cls(to_device(model, device, dtype), text, tokenizers, path=str(path), batch_tokens=batch_tokens)
        checkpoint = open_checkpoint(path)
        return cls(
            to_device(load_model(checkpoint), device, dtype),
            checkpoint.text,
            open_tokenizers(checkpoint.path / TOKENIZER),
            path=str(path),
            options=dict(checkpoint.config.get("task", {})),
            training_hashes=checkpoint.training_hashes,
            batch_tokens=batch_tokens,
        )

    def fingerprint(self) -> str:
        """Return a digest that changes when the predictions change."""
        return fingerprint(self.model, self.text)

    def check_kind(self, kind: str) -> None:
        """Raise UserError if the classifier predicts something else than annotations of this kind."""
        if self.annotation.kind != kind:
            (predicted, tests), (wanted, _) = KINDS[self.annotation.kind], KINDS[kind]
            problem, cure = f"this classifier predicts {predicted}, not {wanted}", f"measure it by xrep-eval {tests}"
            raise UserError(problem, path=self.path or None, cure=cure)

    # -- predictions --------------------------------------------------------------------------------------------------

    def predict(self, texts: Sequence[str | tuple[str, ...]]) -> tuple[list[str], np.ndarray]:
        """Return the most probable label of each text or pair, and the probabilities of all labels.

        Returns:
            N labels, and float32 [N, L], whose columns are ``annotation.labels``.

        Raises:
            UserError: The classifier is of another kind.
        """
        self.check_kind("label")
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        examples = [LabelledText(tuple(" ".join(one.split()) for one in pair), "", "", Path(), 0) for pair in pairs]
        rows = Rows(label_rows(examples, *self._reading, lambda _: 0, self.text.max_length))
        probabilities = np.empty((len(examples), len(self.annotation.labels)), dtype=np.float32)
        for batch, logits in self._logits(rows):
            probabilities[batch.indices.numpy()] = logits.softmax(dim=1).numpy()
        return [self.annotation.labels[place] for place in probabilities.argmax(axis=1)], probabilities

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the tag of each word of each sentence.

        Raises:
            UserError: The classifier is of another kind.
        """
        self.check_kind("tags")
        examples = [TaggedSentence(tuple(words), (), "", Path(), 0) for words in sentences]
        numbers = ([0] * len(example.words) for example in examples)
        rows = Rows(tag_rows(examples, *self._reading, lambda _: next(numbers), self.text.max_length))
        tags_of_rows = [list[str]()] * len(rows)
        for batch, logits in self._logits(rows):
            best, is_first = logits.argmax(dim=2), batch.labels != IGNORED
            for row, places, first in zip(batch.indices.tolist(), best, is_first, strict=True):
                tags_of_rows[row] = [self.annotation.labels[place] for place in places[first].tolist()]
        tags = [list[str]() for _ in examples]
        for example, of_row in zip(rows.examples.tolist(), tags_of_rows, strict=True):
            tags[example] += of_row
        return tags

    def answer(self, questions: Sequence[Question]) -> list[FoundAnswer]:
        """Return the best answer to each question in its context.

        Raises:
            UserError: The classifier is of another kind, or there is no room for a context beside a question.
        """
        self.check_kind("span")
        sizes = {name: int(self._options.get(name, usual)) for name, usual in WINDOWS.items()}
        given = list(question_rows(questions, *self._reading, max_length=self.text.max_length, **sizes))
        best = [FoundAnswer("", 0, -float("inf"))] * len(questions)
        for batch, logits in self._logits(Rows(given)):
            for number, logit in zip(batch.indices.tolist(), logits, strict=True):
                row = given[number]
                span = best_span(logit.numpy(), row)
                if span is not None and span[2] > best[row.example].score:
                    context, (start, end, score) = questions[row.example].context, span
                    text = context[start:end]
                    start += len(text) - len(text.lstrip())
                    best[row.example] = FoundAnswer(text.strip(), start, score)
        return best

    # -- helpers ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _logits(self, rows: Rows) -> Iterator[tuple[AnnotatedBatch, Tensor]]:
        """Yield batches of rows of similar length, and their logits in float32 on the CPU."""
        self.model.eval()
        device = next(self.model.parameters()).device
        for numbers in batches_of(rows.lengths, self._batch_tokens):
            batch = rows.batch(np.array(numbers), self._reading[1], self.annotation.kind)
            yield batch, self.model(batch.tokens.to(device)).float().cpu()


def best_span(logits: np.ndarray, row: Row) -> tuple[int, int, float] | None:
    """Return the best answer in a window: its characters (start, end) in the context, and the sum of its logits.

    Args:
        logits: [T, 2], of the beginning and the end of the answer.

    Returns:
        None if the window has no tokens of the context.
    """
    inside = slice(row.first, row.first + len(row.spans))
    begins, ends = logits[inside, 0], logits[inside, 1]
    best: tuple[int, int, float] | None = None
    for begin in np.argsort(-begins, kind="stable")[:CANDIDATES].tolist():
        for end in np.argsort(-ends, kind="stable")[:CANDIDATES].tolist():
            score = float(begins[begin] + ends[end])
            if begin <= end < begin + MAX_ANSWER and (best is None or score > best[2]):
                best = (row.spans[begin][0], row.spans[end][1], score)
    return best
