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

from xrep.data.batch import batches_of
from xrep.errors import UserError
from xrep.inference.predictor import Predictor
from xrep.models.device import to_device
from xrep.models.directory import fingerprint, load_model, open_checkpoint
from xrep.models.kinds import WITH_HEAD, expect, kind_of
from xrep.number_types import Precision
from xrep.text.examples import Example
from xrep.text.sides import SHARED, Tokenizers, open_tokenizers
from xrep.understanding.annotated import IGNORED, Reading, Row, batch_of_rows
from xrep.understanding.classifier import ANNOTATIONS, Classifier, load_classifier
from xrep.understanding.formats import Question, TaggedSentence
from xrep.understanding.labels import label_rows
from xrep.understanding.questions import question_rows
from xrep.understanding.tags import tag_rows

CANDIDATES, MAX_ANSWER = 20, 30
"""As in BERT's evaluation: the best beginnings and ends of a window that are combined, subwords of an answer."""


@dataclass(frozen=True)
class FoundAnswer:
    """The best answer in a context: characters ``start`` to ``start + len(text)``, and the sum of its two logits; -inf
    if the context has no text."""

    text: str = ""
    start: int = 0
    score: float = -float("inf")


@dataclass(eq=False, repr=False)
class SentenceClassifier(Predictor):
    """A trained classifier with its tokenizer. It predicts annotations of one kind; other predictions are a UserError.

    Examples:
        >>> classifier = SentenceClassifier.load("xnli-run/best")                               # doctest: +SKIP
        >>> classifier.predict([("A man sleeps.", "Nobody is awake.")])                         # doctest: +SKIP
        (['neutral'], array([[0.2, 0.7, 0.1]]))

    Attributes:
        path: Where it was loaded from.
        annotation: What it predicts: its kind and its labels.
        options: Those of the task that it was trained for, of which the windows of a context are made.
        training_hashes: Files of the hashes of its training sentences, if there are any.
    """

    model: Classifier
    tokenizers: Tokenizers
    _: KW_ONLY
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    training_hashes: Sequence[Path] = ()
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        self.annotation = self.model.annotation
        kind = ANNOTATIONS[self.annotation.kind]
        self.columns, self.form = kind.columns, kind.form
        if self.annotation.kind == "label" and len(self.annotation.texts) == 1:
            (count,) = self.columns = self.annotation.texts
            self.form = "text" if count == 1 else "text<TAB>text, as in the training text"
        self._reading = Reading(self.tokenizers[SHARED], self.model.text.max_length, self.options)

    @classmethod
    def load(
        cls, path: str | Path, *, device: str | None = None, dtype: Precision = "float32", batch_tokens: int = 4096
    ) -> SentenceClassifier:
        """Load a classifier from a checkpoint of a run, such as ``run1/best``, or from a directory of transformers.

        ``device`` and ``dtype`` are as for ``SentenceEncoder.load``: the default device is a GPU if there is one.

        Raises:
            UserError: It is neither, or its model is not a classifier, or the device does not compute in ``dtype``.
        """
        run: dict[str, Any] = {}
        if expect(path, Classifier, WITH_HEAD) == WITH_HEAD:
            model, tokenizers = load_classifier(Path(path))
        else:
            checkpoint = open_checkpoint(path)
            model, tokenizers = load_model(checkpoint), open_tokenizers(checkpoint.tokenizer)
            run = {"options": checkpoint.config.get("task") or {}, "training_hashes": checkpoint.training_hashes}
        return cls(to_device(model, device, dtype), tokenizers, path=str(path), batch_tokens=batch_tokens, **run)

    @classmethod
    def opens(cls, path: str | Path) -> bool:
        """Return whether this is a directory of transformers whose model has a head for labels or answers."""
        return kind_of(path) == WITH_HEAD

    def fingerprint(self) -> str:
        """Return a digest that changes when the predictions change."""
        return fingerprint(self.model, self.model.text)

    def check_kind(self, kind: str) -> None:
        """Raise UserError if the classifier predicts something else than annotations of this kind."""
        if self.annotation.kind != kind:
            own, cure = ANNOTATIONS[self.annotation.kind], "measure it by xrep-eval"
            problem = f"this classifier predicts {own.predicts}, not {ANNOTATIONS[kind].predicts}"
            raise UserError(problem, path=self.path or None, cure=f"{cure} {own.evaluations}")

    def predict(self, texts: Sequence[str | tuple[str, ...]]) -> tuple[list[str], np.ndarray]:
        """Return the most probable label of each of N texts or pairs, and the probabilities of all L labels, float32
        [N, L], whose columns are ``annotation.labels``."""
        self.check_kind("label")
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        examples = [Example(tuple(" ".join(one.split()) for one in pair), ()) for pair in pairs]
        logits = torch.empty(len(examples), len(self.annotation.labels))
        for _, row, own in self._logits(label_rows(examples, self._reading)):
            logits[row.example] = own
        probabilities = logits.softmax(dim=1).numpy()
        return [self.annotation.labels[best] for best in probabilities.argmax(axis=1)], probabilities

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the tag of each word of each sentence."""
        self.check_kind("tags")
        examples = [TaggedSentence(tuple(words)) for words in sentences]
        tags = [list[str]() for _ in examples]
        for _, row, logits in sorted(self._logits(tag_rows(examples, self._reading)), key=lambda found: found[0]):
            best = logits.argmax(dim=1)[: len(row.ids)][torch.tensor(row.labels) != IGNORED]
            tags[row.example] += [self.annotation.labels[number] for number in best.tolist()]
        return tags

    def answer(self, questions: Sequence[Question]) -> list[FoundAnswer]:
        """Return the best answer to each question in its context; a UserError says if there is no room for a context
        beside a question."""
        self.check_kind("span")
        best = [FoundAnswer()] * len(questions)
        for _, row, logits in self._logits(question_rows(questions, self._reading)):
            span = best_span(logits.numpy(), row)
            if span is not None and span[2] > best[row.example].score:
                start, end, score = span
                text = questions[row.example].context[start:end]
                best[row.example] = FoundAnswer(text.strip(), end - len(text.lstrip()), score)
        return best

    def predict_lines(self, rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the label, the tags or the answer of each line, and the same with probabilities or scores."""
        if self.annotation.kind == "label":
            labels, probabilities = self.predict([tuple(row) for row in rows])
            for label, each in zip(labels, probabilities, strict=True):
                named = dict(zip(self.annotation.labels, map(float, each), strict=True))
                yield f"{label}\t{named[label]:.4f}", {"label": label, "probabilities": named}
        elif self.annotation.kind == "tags":
            sentences = [[word for word in " ".join(row).split(" ") if word] for row in rows]
            for words, tags in zip(sentences, self.tag(sentences), strict=True):
                yield " ".join(tags), {"words": words, "tags": tags}
        else:
            for found in self.answer([Question(question, context) for question, context in rows]):
                score = found.score if np.isfinite(found.score) else None  # JSON has no infinity
                fields = {"answer": found.text, "start": found.start, "score": score}
                yield f"{found.text}\t{found.start}", fields

    @torch.inference_mode()
    def _logits(self, rows: Iterable[Row]) -> Iterator[tuple[int, Row, Tensor]]:
        """Yield the number of each row, the row, and its logits in float32 on the CPU, similar lengths together."""
        rows, device = list(rows), next(self.model.eval().parameters()).device
        for numbers in batches_of([len(row.ids) for row in rows], self.batch_tokens):
            some = [rows[number] for number in numbers]
            tokens = batch_of_rows(some, self._reading.vocabulary).tokens.to(device)
            yield from zip(numbers, some, self.model(tokens).float().cpu(), strict=True)


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
